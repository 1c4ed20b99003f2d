"""README, FAQ and CONTRIBUTING: what a stranger reads first is true, short, and leads somewhere."""

import re
from statistics import fmean

import pytest

from course.cli import HELP
from course.figures.ladder import with_sheet_forecast
from course.paths import ROOT
from course.site import pictures, readme
from nanogpt.cli import COMMANDS, main
from nanogpt.labs.ladder.ladder import together

README, INDEX, FAQ = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "site/index.md", "site/faq.md")
)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "site/index.md",
    "site/api.md",
    "site/faq.md",
    "site/keys.md",
    "site/cheatsheet.md",
    "site/results.md",
    "slurm/README.md",
]


def recorded(name: str) -> dict:
    return pictures.recorded(ROOT / "data" / "measurements" / f"{name}.json")


def anchors(text: str) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", PAGES)
def test_no_link_is_dead(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), f"{name} leads to {target}, which is not there"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{name} leads to {target}"


@pytest.mark.parametrize("path", readme.PAGES, ids=lambda path: path.name)
def test_counts_hours_times_tables_and_the_story_are_those_of_the_repository(path):
    text = path.read_text(encoding="utf-8")
    assert readme.filled(text, path) == text, "run `course readme --write`"
    changed = re.sub(r"(<!-- \w+ -->\n)", r"\1an older line\n", text)
    assert readme.filled(changed, path) == text, "a block that nobody fills"


@pytest.mark.parametrize("text", [README, INDEX], ids=["README", "index"])
def test_the_story_and_the_numbers_in_the_text_are_the_recorded_ones(text):
    model, (first, *_, last) = recorded("readme-model"), pictures.stairs("staircase-h100")
    assert " ".join(re.findall(r"^> (.+)$", text, re.MULTILINE)) == model["story"]["text"]
    disturbed = " and ".join(step["name"] for step in pictures.stairs("staircase") if step["disturbed"])
    for claim in (
        f"a model with {model['parameters'] / 1e6:.1f} million parameters, after about a minute",
        model["story"]["command"],
        f"{last['so_far']:.1f} times as fast, from {first['ms']} to {last['ms']} ms; ",
        f"{first['predicted_ms']} and {last['predicted_ms']} ms. On the CPU",
        f"The pairs of {disturbed} disagree",
    ):
        assert claim in text.replace("\\\n    ", "")


def test_the_records_are_what_the_text_makes_of_them():
    assert 40 < recorded("readme-model")["seconds"] < 90, "about a minute"
    runs = recorded("learned")["runs"]["as in chapter 07"]
    assert all(run[whose]["both"] == 1 for run in runs for whose in ("hers", "his")), "in every story"
    steps = pictures.stairs("staircase")
    assert sum(step["slower"] for step in steps) == 1, "one of them made the step slower"
    assert sum(step["says"].startswith("not measurable") for step in steps) == 1, "one changed nothing"


def test_what_readme_s_table_says_of_an_h100_was_recorded_and_forecast():
    run = recorded("h100")
    steps = pictures.stairs("staircase-h100")
    first, last = steps[0], steps[-1]
    assert f"from {first['ms']} to {last['ms']} ms a step: {together(run['rungs']):.1f} times" in README
    assert f"{first['predicted_ms']} and {last['predicted_ms']} ms, every rung within a sixth" in README
    for rung in with_sheet_forecast(run)["rungs"]:
        assert 6 / 7 < rung["ms"] / rung["predicted_ms"] < 7 / 6
        assert rung["agrees"], "it computes something else"


def test_what_readme_says_of_peers_on_an_h200_is_recorded():
    line = next(line for line in README.splitlines() if "on an H200" in line)
    told = [float(number) for number in re.findall(r"\d+\.\d", line)]
    rows = recorded("h200-peers")["rows"]
    measured = [round(fmean(row["ms"]), 1) for row in rows if row.get("ms") and row["batch"] == 16]
    assert set(told) == set(measured), (told, measured)


@pytest.mark.parametrize("name", PAGES)
def test_a_command_that_is_named_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    ours = set(re.findall(r"\bcourse ([a-z]+)", HELP))
    named = set(re.findall(r"(?:^|`|\\|… )course ([a-z]+)", text, re.MULTILINE))
    assert named <= ours, f"{name} names course {', '.join(named - ours)}"
    assert set(re.findall(r"-m nanogpt ([a-z]+)", text)) <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets


DAYS = r"run +([\d.]+) days"


@pytest.mark.parametrize(
    ("device", "options", "line", "said"),
    [
        ("A100-80GB", "--dp 1 --batch 64 --accumulate 8 --tokens 10e9 --mfu 0.4", DAYS, "{} days"),
        ("A100-80GB", "--dp 8 --batch 64 --accumulate 1 --tokens 10e9 --mfu 0.4", DAYS, "{} days"),
        ("RTX 4090", "--dp 1 --batch 16 --accumulate 32 --tokens 10e9 --mfu 0.4", DAYS, "{} days"),
        ("T4", "--batch 1", r"largest batch +(\d+)", "{} rows in fp16 on a T4"),
        ("A100-80GB", "--batch 1", r"largest batch +(\d+)", "{} in bf16 on an 80 GB A100"),
    ],
)
def test_the_faq_s_days_and_batches_are_those_of_plan(device, options, line, said, capsys):
    assert main(["plan", "--device", device, *options.split()]) == 0
    assert said.format(re.search(line, capsys.readouterr().out)[1]) in FAQ
