"""How exercises 21d are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def small_meshes(draw):
    return [(1, 2, 2), (1, 4, 1), (2, 1, 1)]


def meshes(draw):
    """All three dimensions different, so that none can stand for another; and a dimension of size one in each place."""
    sizes = (2 + torch.randperm(4, generator=draw)[:3]).tolist()
    return [tuple(sizes), (number(draw, 2, 5), number(draw, 2, 5), 3), (3, 1, 4), (1, 3, 5), (2, 5, 1)]


def machines(draw):
    """Groups inside a machine and across several; machines whose border cuts a group; the first group inside, a later one not."""
    return [(2, 4, 2, 8), (2, 8, 4, 8), (4, 2, 8, 8), (2, 2, 2, 8), (1, 3, 4, 8), (2, 3, 2, 8), (1, 2, 3, 4), (4, 4, 4, 64), (number(draw, 2, 6), 2, 4, 8)]  # fmt: skip


def some_layouts(draw):
    found = []
    for tp in (1, 2, 4, 8):
        gpus = tp * number(draw, 1, 9)
        rows = gpus // tp * number(draw, 1, 5)
        found.append((tp, gpus, rows, *(number(draw, 1, 10**6) for _ in range(3))))
    return found


def some_searches(draw):
    """gpus, per_machine, heads, rows, room, parameters, stream, inner: decided by rows, by heads, by room, by the machine; or by none."""
    stream, inner = number(draw, 5, 20), number(draw, 100, 200)
    return [
        (16, 8, 16, 16, 10**9, 10, stream, inner),
        (16, 8, 16, 4, 10**9, 10, stream, inner),
        (16, 8, 12, 2, 10**9, 10, stream, inner),
        (16, 8, 16, 1, 10**9, 10, stream, inner),
        (64, 8, 64, 64, stream * 4 + inner, 0, stream, inner),
        (64, 8, 64, 64, stream + inner - 1, 0, stream, inner),
        (64, 8, 96, 16, 16 * 10 + 2 * stream + inner, 640, stream, inner),
        (64, 8, 96, 16, stream + inner // 4 + 1, 0, stream, inner),
        (64, 8, 96, 8, 16 * 10 + stream + inner / 8, 640, stream, inner),
        (64, 8, 96, 8, 16 * 10 + stream + inner / 8 - 1, 640, stream, inner),
        (12, 4, 24, 4, 10**9, 10, stream, inner),
        (24, 6, 24, 12, 10**9, 10, stream, inner),
        (24, 8, 24, 8, 10**9, 10, stream, inner),
    ]


def grid_of(draw, parts: int, cuts: int) -> tuple:
    """Gradients on a grid: of "same" each cut has the same."""
    grid = []
    for _ in range(parts):
        same = [torch.randn(3, generator=draw), torch.randn(2, 2, generator=draw)]
        row = []
        for _ in range(cuts):
            mlp, head = torch.randn(2, 4, generator=draw), torch.randn(5, generator=draw)
            row.append({"ln": same[0].clone(), "mlp": mlp, "wpe": same[1].clone(), "head": head})
        grid.append(row)
    return grid, ["mlp", "head"]


def no_cuts(draw):
    return [grid_of(draw, 1, 1), grid_of(draw, 4, 1)]


def grids(draw):
    return [grid_of(draw, 1, 2), grid_of(draw, 2, 4), grid_of(draw, 3, 2)]


BLOCKS = """
def rows_of(rank, ranks, tp, rows):
    group, each = rank // tp, rows // (ranks // tp)
    return list(range(group * each, (group + 1) * each))
"""


def changed(old: str, new: str) -> str:
    assert BLOCKS.count(old) == 1, old
    return BLOCKS.replace(old, new)


CHECKS = [
    Check("21d-1", "the groups of a mesh with two dimensions", 1, "groups", small_meshes, hidden=False),
    Check("21d-1", "the groups of any mesh", 1, "groups", meshes),
    Check("21d-1", "dimensions whose groups are cut by a border of two machines", 1, "on_the_network", machines),
    Check("21d-1", "your own rank and machines", 2, "answers"),
    Check("21d-2", "bytes of states and rows, for any tp", 1, "kept", some_layouts),
    Check("21d-2", "the smallest tp, whatever decides it, or none", 2, "smallest_tp", some_searches),
    Check("21d-2", "your own model", 2, "answers"),
    Check("21d-3", "parts, and one cut", 1, "norm", no_cuts, hidden=False),
    Check("21d-3", "parts and cuts", 2, "norm", grids),
    CheckOfCheck(
        "21d-4",
        "the check finds rows that are read by the wrong group, by two, or by none",
        4,
        "check_rows",
        "rows_of",
        right=(
            BLOCKS,
            "def rows_of(rank, ranks, tp, rows): return list(range(rank // tp, rows, ranks // tp))",
            changed("rank // tp", "(ranks - 1 - rank) // tp"),
        ),
        wrong={
            "tp is forgotten: every rank reads other rows": "def rows_of(rank, ranks, tp, rows): return list(range(rank, rows, ranks))",
            "neighbours are taken for different groups": changed("rank // tp", "rank % (ranks // tp)"),
            "the group's number is the rank's place in it": changed("rank // tp", "(rank % tp) % (ranks // tp)"),
            "every group reads every row": "def rows_of(rank, ranks, tp, rows): return list(range(rows))",
            "a group has tp times too few rows": changed("rows // (ranks // tp)", "rows // ranks"),
            "the last row of each group is left out": changed("(group + 1) * each)", "(group + 1) * each - 1)"),
            "the groups overlap by one row": changed("(group + 1) * each)", "min(rows, (group + 1) * each + 1))"),
            "tp and the number of groups are exchanged": changed("rank // tp, rows // (ranks // tp)", "rank // (ranks // tp), rows // (ranks // tp)"),
            "the second rank of a group reads the same rows backwards": changed("return ", "step = 1 if rank % tp == 0 else -1\n    return ").rstrip() + "[::step]",
            "the last group reads what the first one reads": changed("rank // tp", "rank // tp % max(1, ranks // tp - 1)"),
            "groups of two, whatever tp is": changed("rank // tp", "rank // 2 % (ranks // tp)"),
            "unequal shares: the first group reads one row more, the last one less": (
                "def rows_of(rank, ranks, tp, rows):\n    n, g = ranks // tp, rank // tp\n    each = rows // n\n"
                "    edge = lambda i: i * each + (0 < i < n)\n    return list(range(edge(g), edge(g + 1)))"
            ),
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("21d-1", "the first dimension is filled first, so that the ranks of a layer are far apart", ".view(copies, parts, tp)", ".view(tp, parts, copies).permute(2, 1, 0)"),
    Wrong("21d-1", "a group is taken for all ranks that have the same number in this dimension", "mesh.movedim(dimension, -1).flatten(0, 1)",
          "mesh.movedim(dimension, 0).flatten(1)"),
    Wrong("21d-1", "groups of neighbours in every dimension", "mesh.movedim(dimension, -1).flatten(0, 1)", "mesh.view(-1, mesh.size(dimension))"),
    Wrong("21d-1", "the groups are right, and they are not ordered by their first rank", "sorted(mesh.movedim(dimension, -1).flatten(0, 1).tolist())",
          "mesh.movedim(dimension, -1).transpose(0, 1).flatten(0, 1).tolist()"),
    Wrong("21d-1", "the first group alone is asked: the border of two machines may cut a later one", "for ranks in ranks_of)", "for ranks in ranks_of[:1])"),
    Wrong("21d-1", "a group is taken to fit into a machine if it has no more ranks than the machine", "ranks[0] // per_machine != ranks[-1] // per_machine",
          "len(ranks) > per_machine"),
    Wrong("21d-2", "each GPU is given rows of its own, although tp of them share theirs", "rows / (gpus / tp)", "rows / gpus"),
    Wrong("21d-2", "all of a row's bytes are divided by tp: the stream is complete on every rank", "(stream + inner / tp)", "(stream + inner) / tp"),
    Wrong("21d-2", "nothing of a row is divided by tp", "inner / tp", "inner"),
    Wrong("21d-2", "the states are divided by tp alone, as if every group had a copy", "16 * parameters / gpus", "16 * parameters / tp"),
    Wrong("21d-2", "rows that do not come out even are allowed: some group would read a part of a row", " or rows % (gpus // tp)", ""),
    Wrong("21d-2", "heads that do not come out even are allowed", " or heads % tp", ""),
    Wrong("21d-2", "a group may reach across machines", "range(1, per_machine + 1):\n        if gpus % tp or heads % tp or per_machine % tp or", "range(1, gpus + 1):\n        if gpus % tp or heads % tp or"),
    Wrong("21d-2", "the largest tp, and not the smallest", "range(1, per_machine + 1)", "range(per_machine, 0, -1)"),
    Wrong("21d-2", "the first tp that is possible by its numbers is taken, whether it fits into memory or not", "<= room", "< float('inf')"),
    Wrong("21d-3", "what is the same for each cut is counted once for each cut", "name in cut or t == 0", "True"),
    Wrong("21d-3", "what is the same for each cut is left out", "name in cut or t == 0", "name in cut"),
    Wrong("21d-3", "the first cut alone is counted", "name in cut or t == 0", "t == 0"),
    Wrong("21d-3", "cut and not cut are exchanged", "name in cut or t == 0", "name not in cut or t == 0"),
    Wrong("21d-3", "norms are added, and not squares", code="""
          def norm(grid, cut):
              return sum(x.norm().item() for part in grid for t, tensors in enumerate(part) for name, x in tensors.items() if name in cut or t == 0)
          """),
    Wrong("21d-3", "the sum over all ranks is divided by the number of cuts, those that differ as well", code="""
          def norm(grid, cut):
              squares = sum(x.double().square().sum().item() for part in grid for tensors in part for x in tensors.values())
              return math.sqrt(squares / len(grid[0]))
          """),
    Wrong("21d-4", "the check accepts everything", code="def check_rows(rows_of):\n    pass"),
    Wrong("21d-4", "the check tries a grid of 2 × 2 alone, where many mistakes are hidden", code="""
          def check_rows(rows_of):
              read = [list(rows_of(rank, 4, 2, 4)) for rank in range(4)]
              assert read[0] == read[1] and read[2] == read[3] and sorted(read[0] + read[2]) == [0, 1, 2, 3]
          """),
    Wrong("21d-4", "the check knows one way to deal rows, and refuses others", code="""
          def check_rows(rows_of):
              for ranks, tp in ((4, 2), (8, 2), (4, 4)):
                  for rank in range(ranks):
                      assert list(rows_of(rank, ranks, tp, 8)) == blocks(rank, ranks, tp, 8)
          """),
    Wrong("21d-4", "the check looks at each group's first rank alone", code="""
          def check_rows(rows_of):
              for ranks, tp in ((4, 2), (8, 2), (4, 4), (4, 1)):
                  read = [list(rows_of(rank, ranks, tp, 8)) for rank in range(0, ranks, tp)]
                  assert sorted(sum(read, [])) == list(range(8)) and len(set(map(len, read))) == 1
          """),
]  # fmt: skip

MANUAL = {"21d-5": 2}
RUBRIC = {
    "21d-5": "½ point each. Which: c_attn's weights and biases; tensor parallelism has put their rows into the order of the ranks' heads (each rank's q, k and v together), and the list of parts knows only rows, not what they mean. "
    "The same layout: it reads the rows in the same order in which it wrote them, so nothing has moved. Test: write on one layout, read on another (or by one process), and compare weights or the first loss with those before. "
    "Remedy: put the rows back into one process's order when writing (or note the order and undo it when reading), or refuse such a checkpoint with tp > 1, as the course's save_parts does."
}
