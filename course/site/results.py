"""The tables of site/results.md, each made from the record that stands below it; `course readme --write` fills them in."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from course.paths import ROOT, relative
from course.site.pictures import FIRST, H100, LADDER, MEASUREMENTS, NAMES, in_all, recorded, staircase_steps

LEARNED, CHANGES, PEERS = (MEASUREMENTS / f"{name}.json" for name in ("learned", "llama", "h200-peers"))
GPUS = {"H100": H100, "H200": MEASUREMENTS / "h200.json"}
DAYS = {name: MEASUREMENTS / f"{name.lower()}-day.json" for name in GPUS}
BOARD = ROOT / "data" / "leaderboard.json"


def table(head: str, rows: Iterable[Iterable[str]], marks: str = "---:") -> str:
    """A Markdown table. head: its first line, such as "rung | ms", whose first column holds words and the others numbers."""
    lines = [f"| {head} |", f"|---|{f'{marks}|' * head.count('|')}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def source(path: Path) -> str:
    """The line below a table: the file, its day and machine, and the command that made it."""
    record = recorded(path)
    machine = record.get("machine", record)
    torch = machine.get("torch") or machine["versions"]["torch"]
    how = f"`{record['command']}`" if "command" in record else record["what"]
    return f"*`{relative(path)}`, {machine['date']}, {machine['device']}, PyTorch {torch}: {how}*"


def losses() -> str:
    """The first model among the models that only count, and the floor below all of them."""
    record = recorded(FIRST)
    model = f"**the model: {record['parameters']:,} parameters, {record['seconds']:.0f} s of training**"
    lines = record["lines"] | {model: record["val_loss"]}
    highest_first = sorted(lines.items(), key=lambda line: -line[1])
    rows = [(name, f"{loss:.3f}", f"{loss - record['floor']:.3f}") for name, loss in highest_first]
    return f"{table('model | nats a token | above the floor', rows)}\n\n{source(FIRST)}"


def learned() -> str:
    """How often each kind of number is right, by how the model was trained: the range over the runs."""
    kinds = {
        "a number that the text has": lambda run: run["facts"]["copied number"]["right"],
        "a number that must be computed": lambda run: run["facts"]["computed number"]["right"],
        "her number, before and after the two are exchanged": lambda run: run["hers"]["both"],
        "his number, before and after": lambda run: run["his"]["both"],
    }
    runs = recorded(LEARNED)["runs"]
    shown = ("as in chapter 07", "twice as long", "one layer")
    head = " | ".join(["right answers", *(f"{name}, runs: {len(runs[name])}" for name in shown)])
    rows = [
        [kind, *(shares(list(map(right, runs[name]))) for name in shown)] for kind, right in kinds.items()
    ]
    return f"{table(head, rows)}\n\n{source(LEARNED)}"


def shares(values: list[float]) -> str:
    """The lowest and the highest of some shares in per cent; one number where they are equal."""
    lowest, highest = f"{min(values):.0%}", f"{max(values):.0%}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


def changes() -> str:
    """What each change from GPT-2 to Llama does to the loss, with its interval."""
    rows, differ = [], []
    for row in recorded(CHANGES)["rows"]:
        low, high = row["interval"]
        difference = "" if row["name"] == "GPT-2" else f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
        rows.append((row["name"], f"{row['parameters']:,}", f"{row['loss']:.3f}", difference))
        if low > 0 or high < 0:
            differ.append(row["name"])
    made = table("change | parameters | nats a token | beside GPT-2 (95% interval)", rows)
    return f"{made}\n\nShown to differ: {', '.join(differ) or 'none'}.\n\n{source(CHANGES)}"


def cpu() -> str:
    """The ladder on two cores, forecast beside measured: README's staircase as a table."""
    rows, run = [], recorded(LADDER)
    for step, rung in zip(staircase_steps(run), run["rungs"]):
        gain, _, predicted = step["says"].rpartition(" · predicted ")
        times = f"{step['predicted_ms']:,}", f"{rung['ms']:,.0f}"
        rows.append((step["name"], *times, predicted if gain else "", gain))
    head = "change | ms, predicted | ms, measured | gain, predicted | gain, measured"
    return f"{table(head, rows)}\n\n{source(LADDER)}"


def gpus() -> str:
    """The ladder on GPUs, forecast beside measured, and what it comes to."""
    # here: a course whose package is still empty has results, too
    from course.figures.ladder import with_sheet_forecast

    runs = {name: with_sheet_forecast(recorded(path)) for name, path in GPUS.items()}
    rows = [
        (NAMES[rungs[0]["name"]], *(f"{rung[ms]:.1f}" for rung in rungs for ms in ("predicted_ms", "ms")))
        for rungs in zip(*(run["rungs"] for run in runs.values()))
    ]
    sums = []
    for name, run in runs.items():
        last, faster = run["rungs"][-1], in_all(staircase_steps(run)).removesuffix(" ×")
        ratios = [rung["ms"] / rung["predicted_ms"] for rung in run["rungs"]]
        worst = max(max(ratio, 1 / ratio) for ratio in ratios)
        sums.append(
            f"- **{name}**: {faster} times as fast in all; the last step makes {last['tokens_per_s']:,.0f} tokens/s,"
            f" {last['mfu']:.0%} of the data sheet's FLOP/s. The furthest forecast is off by a factor of {worst:.2f}."
        )
    head = "change | " + " | ".join(f"{name}: ms, forecast | ms, measured" for name in GPUS)
    return "\n\n".join([table(head, rows), "\n".join(sums), *map(source, GPUS.values())])


def peers() -> str:
    """A step by other programs and ours on one GPU."""
    rows = []
    for row in sorted(recorded(PEERS)["rows"], key=lambda row: (row["batch"], -fmean(row["tokens_per_s"]))):
        name = row["program"]
        if name == "ours":
            name = "**this course, a step**"
        elif name.startswith("train "):
            name = f"**this course, `{name}`**"
        ms = f"{fmean(row['ms']):.1f}" if "ms" in row else ""
        memory = f"{row['peak_gib']:.1f}" if "peak_gib" in row else ""
        rows.append((name, f"{row['batch']}", ms, f"{fmean(row['tokens_per_s']):,.0f}", memory))
    return f"{table('program | B | ms a step | tokens/s | GiB', rows)}\n\n{source(PEERS)}"


def repeated() -> str:
    """Which runs on GPUs give the same bits twice and after a kill, and how far the losses of precisions part."""
    day = recorded(DAYS["H100"])
    twice = recorded(DAYS["H200"])["repeated"]["first differing step"]
    lists = {
        "H100, equal twice and after a kill": day["tests"]["equal to the last bit, twice and after a kill"],
        "H100, not equal": day["tests"]["first differing step of the second run and of the killed one"],
        "H200, equal twice": [name for name, step in twice.items() if step is None],
        "H200, not equal": [name for name, step in twice.items() if step is not None],
    }
    runs = "\n".join(f"- {what}: {'; '.join(names)}" for what, names in lists.items())
    apart = [(name, f"{nats:.5f}") for name, nats in day["curves"]["largest_difference"].items()]
    steps = table(f"precision, {day['curves']['steps']} steps | nats from float32, at most", apart)
    return "\n\n".join([runs, steps, *map(source, DAYS.values())])


def programs() -> str:
    """The rows of README's table "Measured" that a benchmark prints; their figures have their home there."""
    measured = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Measured")[2]
    lines = [line for line in measured.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return "\n".join([*lines[:2], *(line for line in lines if "`python bench/" in line)])


def records() -> str:
    """The board of the speedrun: each record's loss and time beside its reference's."""
    rows, board = [], recorded(BOARD)
    for entry in board:
        ours, theirs = fmean(entry["seconds"]), entry["reference_seconds"]
        nats = f"{fmean(entry['losses']):.3f}", f"{entry['reference_loss']:.3f}"
        seconds = f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.0%}"
        rows.append((entry["track"], *nats, *seconds, f"{len(entry['seeds'])}", entry["date"]))
    head = "track | nats | the reference's | seconds | the reference's | share | seeds | date"
    commands = "; ".join(f"`{entry['command']}`" for entry in board)
    return f"{table(head, rows)}\n\n*`{relative(BOARD)}`: {commands}*"


BLOCKS = losses, learned, changes, cpu, gpus, peers, repeated, programs, records
