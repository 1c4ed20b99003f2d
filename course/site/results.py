"""The tables of site/results.md, each made from the record that stands below it; `course readme --write` fills them in."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from course.paths import ROOT, relative
from course.site.pictures import FIRST, LADDER, NAMES, in_all, recorded, staircase_steps

RESULTS = ROOT / "site" / "results.md"
MEASUREMENTS = ROOT / "data" / "measurements"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table. head: its first line, such as "rung | ms", whose first column holds words and the others numbers."""
    columns = head.count("|")
    lines = [f"| {head} |", f"|---|{'---:|' * columns}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


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
    floor = record["floor"]
    model = f"**the model: {record['parameters']:,} parameters, {record['seconds']:.0f} s of training**"
    lines = sorted((record["lines"] | {model: record["val_loss"]}).items(), key=lambda line: -line[1])
    rows = [(name, f"{loss:.3f}", f"{loss - floor:.3f}") for name, loss in lines]
    return f"{table('model | nats a token | above the floor', rows)}\n\n{source(FIRST)}"


LEARNED = MEASUREMENTS / "learned.json"


def learned() -> str:
    """How often each kind of number is right, by how the model was trained: the range over the runs."""
    kinds = {
        "a number that the text has": lambda run: run["facts"]["copied number"]["right"],
        "a number that must be computed": lambda run: run["facts"]["computed number"]["right"],
        "her number, before and after the two are exchanged": lambda run: run["hers"]["both"],
        "his number, before and after": lambda run: run["his"]["both"],
    }
    recorded_runs = recorded(LEARNED)["runs"]
    runs = {name: recorded_runs[name] for name in ("as in chapter 07", "twice as long", "one layer")}
    names = [f"{name}, runs: {len(made)}" for name, made in runs.items()]
    rows = [
        (kind, *(shares([right(run) for run in made]) for made in runs.values()))
        for kind, right in kinds.items()
    ]
    return f"{table(' | '.join(['right answers', *names]), rows)}\n\n{source(LEARNED)}"


def shares(values: list[float]) -> str:
    """The lowest and the highest of some shares in per cent; one number where they are equal."""
    lowest, highest = f"{min(values):.0%}", f"{max(values):.0%}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


CHANGES = MEASUREMENTS / "llama.json"


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
    rows = []
    run = recorded(LADDER)
    for step, rung in zip(staircase_steps(run), run["rungs"]):
        gain, _, predicted = step["says"].rpartition(" · predicted ")
        ms = f"{step['predicted_ms']:,}", f"{rung['ms']:,.0f}"
        rows.append((step["name"], *ms, predicted if gain else "", gain))
    head = "change | ms, predicted | ms, measured | gain, predicted | gain, measured"
    return f"{table(head, rows)}\n\n{PAIRS}\n\n{source(LADDER)}"


PAIRS = (
    "A gain is from pairs of steps, taken in turns; the milliseconds are medians of different minutes, so their ratios differ from it."
    " Where the interval of a gain reaches further than 15%, the measurement was disturbed, and the table has the interval."
)
GPUS = {name: MEASUREMENTS / f"{name.lower()}.json" for name in ("H100", "H200")}


def gpus() -> str:
    """The ladder on GPUs, forecast beside measured, and what it comes to."""
    # here: a course whose package is still empty has results, too
    from course.figures.ladder import with_sheet_forecast

    runs = {name: with_sheet_forecast(recorded(path)) for name, path in GPUS.items()}
    found = {
        name: {rung["name"]: (rung["predicted_ms"], rung["ms"]) for rung in run["rungs"]}
        for name, run in runs.items()
    }
    head = "change | " + " | ".join(f"{name}: ms, forecast | ms, measured" for name in GPUS)
    rows = []
    for rung in found["H100"]:
        cells = [f"{ms:.1f}" for ladder in found.values() for ms in ladder[rung]]
        rows.append([NAMES.get(rung, rung), *cells])
    sums, notes = [], []
    for name, ladder in found.items():
        last, factor = runs[name]["rungs"][-1], in_all(staircase_steps(runs[name]))
        worst = max(max(ms / told, told / ms) for told, ms in ladder.values())
        sums.append(
            f"- **{name}**: {factor.removesuffix(' ×')} times as fast in all; the last step makes {last['tokens_per_s']:,.0f} tokens/s,"
            f" {last['mfu']:.0%} of the data sheet's FLOP/s. The furthest forecast is off by a factor of {worst:.2f}."
        )
        notes.append(source(GPUS[name]))
    since = (
        "These are the times of that day. The program has changed since, and they were not measured again."
    )
    return "\n\n".join([table(head, rows), "\n".join(sums), since, *notes])


PEERS = MEASUREMENTS / "h200-peers.json"


def peers() -> str:
    """A step by other programs and ours on one GPU."""
    rows = []
    for row in sorted(recorded(PEERS)["rows"], key=lambda row: (row["batch"], -fmean(row["tokens_per_s"]))):
        ms = f"{fmean(row['ms']):.1f}" if "ms" in row else ""
        memory = f"{row['peak_gib']:.1f}" if "peak_gib" in row else ""
        name = row["program"]
        if name == "ours":
            name = "**this course, a step**"
        elif name.startswith("train "):
            name = f"**this course, `{name}`**"
        rows.append((name, f"{row['batch']}", ms, f"{fmean(row['tokens_per_s']):,.0f}", memory))
    return f"{table('program | B | ms a step | tokens/s | GiB', rows)}\n\n{source(PEERS)}"


DAY = {name: MEASUREMENTS / f"{name.lower()}-day.json" for name in GPUS}


def repeated() -> str:
    """Which runs on GPUs give the same bits twice and after a kill, and how far the losses of precisions part."""
    day = recorded(DAY["H100"])
    same = day["tests"]["equal to the last bit, twice and after a kill"]
    other = day["tests"]["first differing step of the second run and of the killed one"]
    twice = recorded(DAY["H200"])["repeated"]["first differing step"]
    curves = day["curves"]
    apart = [(name, f"{nats:.5f}") for name, nats in curves["largest_difference"].items()]
    lists = {
        "H100, equal twice and after a kill": same,
        "H100, not equal": other,
        "H200, equal twice": [name for name, step in twice.items() if step is None],
        "H200, not equal": [name for name, step in twice.items() if step is not None],
    }
    rows = [f"- {what}: {'; '.join(names)}" for what, names in lists.items()]
    steps = table(f"precision, {curves['steps']} steps | nats from float32, at most", apart)
    return "\n\n".join(["\n".join(rows), steps, *map(source, DAY.values())])


def programs() -> str:
    """The rows of README's table "Measured" that a benchmark prints; their figures have their home there."""
    measured = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Measured")[2]
    lines = [line for line in measured.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return "\n".join([*lines[:2], *(line for line in lines if "`python bench/" in line)])


BOARD = ROOT / "data" / "leaderboard.json"


def records() -> str:
    """The board of the speedrun: each record's loss and time beside its reference's."""
    rows, commands = [], []
    for entry in recorded(BOARD):
        ours, theirs = fmean(entry["seconds"]), entry["reference_seconds"]
        nats = f"{fmean(entry['losses']):.3f}", f"{entry['reference_loss']:.3f}"
        seconds = f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.0%}"
        rows.append((entry["track"], *nats, *seconds, f"{len(entry['seeds'])}", entry["date"]))
        commands.append(f"`{entry['command']}`")
    head = "track | nats | the reference's | seconds | the reference's | share | seeds | date"
    return f"{table(head, rows)}\n\n*`{relative(BOARD)}`: {'; '.join(commands)}*"


BLOCKS = {
    "losses": losses,
    "learned": learned,
    "changes": changes,
    "cpu": cpu,
    "gpus": gpus,
    "peers": peers,
    "repeated": repeated,
    "programs": programs,
    "records": records,
}
