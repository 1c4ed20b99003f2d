"""`course grade summary`: how the class did, task by task and check by check, so that a bad question is seen."""

from pathlib import Path
from statistics import mean, median

from course.exercises.sets import ExerciseSet
from course.files import write_atomically
from course.grade.results.alike import OWN, alike
from course.grade.results.page import page, table, text
from course.grade.results.results import graded, unmarked
from course.paths import relative

BINS = 10
PAIRS = 40  # told; more are counted
THIRD = 9  # students from which on the best and the last third are compared


def write_summary(results: list[dict], made: ExerciseSet, folder: Path) -> str:
    path = folder / "summary.html"
    write_atomically(path, summary(results, made).encode())
    return relative(path)


def summary(results: list[dict], made: ExerciseSet) -> str:
    scored = [result for result in results if result["verdict"] == "graded"]
    parts = [f"<h1>{text(made.name)}</h1>", f"<p class=quiet>{text(counts(results))}</p>"]
    if scored:
        most = scored[0]["max_score"]
        scores = [result["score"] for result in scored]
        parts += [
            f"<p>Mean {mean(scores):.1f}, median {median(scores):.1f} of {most:g} points.</p>",
            histogram(scores, most, "students by score"),
            *(task_part(id, scored) for id in scored[0]["tasks"]),
        ]
    parts += [other_part(results), alike_part(results, made)]
    return page(f"{made.name} · summary", "\n".join(parts))


def counts(results: list[dict]) -> str:
    verdicts: dict[str, int] = {}
    for result in results:
        verdicts[result["verdict"]] = verdicts.get(result["verdict"], 0) + 1
    waiting = sum(len(unmarked(result)) for result in results)
    parts = [f"{count} {verdict}" for verdict, count in sorted(verdicts.items())]
    return ", ".join([f"{len(results)} submissions", *parts, f"{waiting} answers wait for their points"])


def histogram(values: list[float], most: float, label: str, height: int = 90, width: int = 420) -> str:
    """Bars of equal width from 0 to `most`, each with its count."""
    bins = [0] * BINS
    for value in values:
        bins[min(int(BINS * value / most), BINS - 1) if most else 0] += 1
    step, scale = width / BINS, (height - 16) / max(bins)
    bars = []
    for i, count in enumerate(bins):
        tall = count * scale
        bars.append(
            f'<rect x="{i * step + 1:.1f}" y="{height - tall:.1f}" width="{step - 2:.1f}" height="{tall:.1f}"/>'
        )
        if count:
            bars.append(
                f'<text x="{(i + 0.5) * step:.1f}" y="{height - tall - 3:.1f}" text-anchor="middle">{count}</text>'
            )
    ends = f'<text x="0" y="{height + 13}">0</text><text x="{width}" y="{height + 13}" text-anchor="end">{most:g}</text>'
    size = f'width="{width}" height="{height + 16}" viewBox="0 0 {width} {height + 16}"'
    return f'<svg {size} role="img" aria-label="{text(label)}">{"".join(bars)}{ends}</svg>'


def task_part(id: str, scored: list[dict]) -> str:
    tasks = [result["tasks"][id] for result in scored if id in result["tasks"]]
    most = tasks[0]["max_points"]
    points = [task["points"] for task in tasks]
    head = f"<h2>{text(id)} · {text(tasks[0]['title'])}: mean {mean(points):.1f} of {most:g}</h2>"
    thirds = third(scored)
    heads = ["check", "got it", *(["best third", "last third"] if thirds else []), "points"]
    rows = [check_row(id, i, scored, thirds) for i in range(len(tasks[0]["checks"]))]
    chart = histogram(points, most, f"students by points in {id}", height=50, width=260)
    return "\n".join([head, chart, table(heads, rows, numbers=(1, 2, 3, 4))])


def third(scored: list[dict]) -> tuple[list[dict], list[dict]] | None:
    """The students with the best and with the last third of scores; None in a small class."""
    ranked = sorted(scored, key=graded, reverse=True)
    size = len(ranked) // 3
    return (ranked[:size], ranked[-size:]) if len(ranked) >= THIRD else None


def share(id: str, i: int, results: list[dict]) -> float:
    """Of the points of a check, the part that these students got."""
    checks = [result["tasks"][id]["checks"][i] for result in results if id in result["tasks"]]
    return mean(c["points"] / c["max_points"] for c in checks)


def check_row(id: str, i: int, scored: list[dict], thirds) -> list[str]:
    check = scored[0]["tasks"][id]["checks"][i]
    name = text(check["name"]) + (" <span class=quiet>hidden</span>" if check["hidden"] else "")
    shares = [share(id, i, scored), *(share(id, i, group) for group in thirds or ())]
    if thirds and shares[1] <= shares[2] and shares[0] < 1:
        name += "<br><span class=bad>the best third does not do better: is the question clear?</span>"
    elif shares[0] < 0.25:
        name += "<br><span class=wait>few got it: is it hard, or unclear?</span>"
    return [name, *(f"{part:.0%}" for part in shares), f"{check['max_points']:g}"]


def other_part(results: list[dict]) -> str:
    """Submissions that got no score from the checks, with the reason."""
    others = [result for result in results if result["verdict"] != "graded"]
    if not others:
        return ""
    rows = [[text(r["student"]), text(r["verdict"]), text(r.get("message", ""))] for r in others]
    again = any(r["verdict"] == "infrastructure_error" for r in others)
    note = "<p>An infrastructure_error is ours: grade those again.</p>" if again else ""
    return "<h2>Not graded</h2>" + note + table(["student", "verdict", ""], rows)


def alike_part(results: list[dict], made: ExerciseSet) -> str:
    pairs = alike(results, made)
    if not pairs:
        return ""
    rows = [[text(p.task), text(p.one), text(p.other), f"{p.similarity:.0%}"] for p in pairs[:PAIRS]]
    more = f"<p class=quiet>{len(pairs) - PAIRS} further pairs.</p>" if len(pairs) > PAIRS else ""
    return (
        "<h2>Solutions that read alike</h2><p>After renaming variables these pairs agree almost everywhere. Short solutions do"
        " that by chance, and students may have worked together as you allowed: look at both before you think anything."
        f" Solutions that are {OWN:.0%} the stub or the reference are left out.</p>"
        + table(["task", "one", "other", "alike"], rows, numbers=(3,))
        + more
    )


def overview(results: list[dict]) -> str:
    """For the terminal."""
    scored = [result for result in results if result["verdict"] == "graded"]
    told = [counts(results)]
    if scored:
        scores = [result["score"] for result in scored]
        told.append(f"mean {mean(scores):.1f}, median {median(scores):.1f} of {scored[0]['max_score']:g}")
        for id, task in scored[0]["tasks"].items():
            got = mean(r["tasks"][id]["points"] for r in scored if id in r["tasks"])
            told.append(f"  {id}  {got:5.1f} of {task['max_points']:g}  {task['title']}")
    return "\n".join(told)
