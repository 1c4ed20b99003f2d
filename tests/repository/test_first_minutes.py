"""README, FAQ, CITATION and CONTRIBUTING: what a stranger reads first is true, short, and leads somewhere."""

import ast
import re
import tomllib
from statistics import fmean

import pytest
import yaml

import nanogpt
from course.notebooks.address import is_published, repository
from course.paths import PACKAGE, ROOT
from course.site import pictures, readme
from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
from nanogpt.labs.ladder.ladder import together
from nanogpt.labs.roofline.sheets import peak_of
from nanogpt.model import GPTConfig

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
QUOTES = re.findall(r"^> (.+)$", FAQ, re.MULTILINE)


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


def test_each_block_stands_on_a_page():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in readme.PAGES)
    assert set(re.findall(r"<!-- (\w+) -->", pages)) == set(readme.BLOCKS)


@pytest.mark.parametrize("path", readme.PAGES, ids=lambda path: path.name)
def test_counts_hours_times_tables_and_the_story_are_those_of_the_repository(path):
    text = path.read_text(encoding="utf-8")
    assert readme.filled(text, path) == text, "run `course readme --write`"
    changed = re.sub(r"(<!-- \w+ -->\n)", r"\1an older line\n", text)
    assert readme.filled(changed, path) == text, "a block that nobody fills"


@pytest.mark.parametrize("text", [README, INDEX], ids=["README", "index"])
def test_what_is_said_of_the_first_model_is_recorded_and_printed(text):
    model = recorded("readme-model")
    assert f"a model with {model['parameters'] / 1e6:.1f} million parameters, after about a minute" in text
    assert 40 < model["seconds"] < 90
    quoted = " ".join(re.findall(r"^> (.+)$", text, re.MULTILINE))
    assert quoted == model["story"]["text"] and model["story"]["command"] in text.replace("\\\n    ", "")
    assert "it still names the right one in every story" in text and "never the name" in text
    runs = recorded("learned")["runs"]
    assert all(run[whose]["both"] == 1 for run in runs["as in chapter 07"] for whose in ("hers", "his"))
    page = (ROOT / "notebooks/07b_learned.ipynb").read_text(encoding="utf-8")
    assert re.search(r"by the pronoun in (\d+) of \1 stories", page)


def test_the_map_is_described_as_in_chapter_00():
    from course.figures.setup import MAP

    assert f'alt="{MAP}"' in README


def test_the_core_is_about_as_long_as_readme_says():
    said = int(re.search(r"a core of about ([\d,]+) lines", README)[1].replace(",", ""))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.glob("[a-z]*.py"))
    assert lines == pytest.approx(said, rel=0.1)


@pytest.mark.parametrize("text", [README, INDEX], ids=["README", "index"])
def test_what_is_said_below_the_staircases_is_what_they_show(text):
    first, *_, last = pictures.stairs("staircase-h100")
    measured = f"{last['so_far']:.1f} times as fast, from {first['ms']} to {last['ms']} ms"
    assert (
        f"{measured}; " in text
        and f"{first['predicted_ms']} and {last['predicted_ms']} ms. On the CPU" in text
    )
    steps = pictures.stairs("staircase")
    assert sum(step["slower"] for step in steps) == 1
    assert sum(step["says"].startswith("not measurable") for step in steps) == 1
    assert "one of them made the step slower and one changed nothing measurable" in text
    assert "one rung made a step slower and one changed nothing measurable" in FAQ
    unknown = " and ".join(step["name"] for step in steps if step["disturbed"])
    assert f"The pairs of {unknown} disagree" in text


def test_what_readme_says_of_an_h100_was_recorded_and_forecast():
    run = recorded("h100")
    ms = {rung["name"]: rung["ms"] for rung in run["rungs"]}
    ladder = predict_ladder(peak_of(run["device"]), GPTConfig(), run["batch"], run["seq"], REACHED, START)
    forecast = {name: 1e3 * sum(ladder[name].values()) for name in ms}
    first, last = "float32", "bf16 weights"
    measured = f"from {ms[first]:.0f} to {ms[last]:.0f} ms a step: {together(run['rungs']):.1f} times as fast"
    assert measured in README
    assert f"{forecast[first]:.0f} and {forecast[last]:.0f} ms, every rung within a sixth" in README
    assert all(6 / 7 < ms[name] / forecast[name] < 7 / 6 for name in ms)
    assert all(rung["agrees"] for rung in run["rungs"]), "a rung computes something else"
    rows = re.findall(r"^\| .+", README.partition("## Measured")[2].partition("\n## ")[0], re.MULTILINE)
    assert "All but the last two rows were measured on two cores" in README
    assert [bool(re.search("H[12]00", row)) for row in rows] == [False] * (len(rows) - 2) + [True, True]


def test_what_readme_says_of_peers_on_an_h200_is_recorded():
    line = next(line for line in README.splitlines() if "on an H200" in line)
    told = [float(number) for number in re.findall(r"\d+\.\d", line)]
    rows = recorded("h200-peers")["rows"]
    measured = [round(fmean(row["ms"]), 1) for row in rows if row.get("ms") and row["batch"] == 16]
    assert set(told) == set(measured), (told, measured)


def test_badges_are_shown_once_there_is_an_address():
    shown = re.sub(r"<!--.*?-->", "", README, flags=re.DOTALL)
    assert bool(re.search("colab|binder", shown, re.IGNORECASE)) == is_published(repository())


def test_what_chapter_00_says_of_the_ladders_is_what_was_recorded():
    text = " ".join((ROOT / "notebooks/src/00_setup.py").read_text(encoding="utf-8").split())
    for claim in (
        "On the processor, *bf16* saves more than a third of the time that was left, *compile* saves less than a tenth, "
        "and *flash*, which was invented for GPUs, makes the step slower",
        "On the H100, *compile* saves more than half of the time that was left, and *flash* more than a quarter of the rest",
    ):
        assert claim in text
    ms = {}
    for name in ("amd-epyc-2-threads", "h100"):
        ms[name] = {rung["name"]: rung["ms"] for rung in recorded(name)["rungs"]}
        assert all(f"*{rung}*" in text for rung in ms[name]), "a bar that no word on the page explains"
    cpu, gpu = ms["amd-epyc-2-threads"], ms["h100"]
    assert cpu["bf16"] < 2 / 3 * cpu["kept memory"] and cpu["flash"] > cpu["compile"]
    assert 0.9 * cpu["bf16"] < cpu["compile"] < cpu["bf16"]
    assert gpu["compile"] < 1 / 2 * gpu["bf16"] and gpu["flash"] < 3 / 4 * gpu["compile"]


def test_chapter_01_shows_gpt_2_s_own_tokens():
    """Its page talks about a figure that only a machine with GPT-2's vocabulary can draw."""
    page = (ROOT / "notebooks/01_tokenizer.ipynb").read_text(encoding="utf-8")
    assert "one token: 505 of the numbers" in page, "build 01 again, with TIKTOKEN_CACHE_DIR set"


def test_citation_has_the_project_s_version_license_and_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["authors"] and cited["message"]
    assert (cited["version"], cited["license"]) == (nanogpt.__version__, project["license"])
    assert cited["repository-code"] == project["urls"]["Repository"]
    assert f"# {cited['title']}" == README.splitlines()[0]


@pytest.mark.parametrize("name", PAGES)
def test_a_command_that_is_named_exists(name):
    from course.cli import HELP
    from nanogpt.cli import COMMANDS

    text = (ROOT / name).read_text(encoding="utf-8")
    ours = set(re.findall(r"\bcourse ([a-z]+)", HELP))
    named = set(re.findall(r"(?:^|`|\\|… )course ([a-z]+)", text, re.MULTILINE))
    assert named <= ours, f"{name} names course {', '.join(named - ours)}"
    assert set(re.findall(r"-m nanogpt ([a-z]+)", text)) <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets


def pieces_of_messages() -> list[str]:
    """What the strings of the course's and the package's code say between the values that they are filled with."""
    found = []
    for path in [*(ROOT / "course").rglob("*.py"), *PACKAGE.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [line for line in node.value.split("\n") if len(line) > 15]
    return found


def test_what_the_faq_quotes_is_what_the_course_prints():
    pieces = pieces_of_messages()
    assert len(QUOTES) > 10
    assert not [quote for quote in QUOTES if not any(piece in quote or quote in piece for piece in pieces)]


@pytest.mark.parametrize(
    ("device", "options", "line"),
    [
        ("A100-80GB", "--dp 1 --batch 64 --accumulate 8 --tokens 10e9 --mfu 0.4", r"run +([\d.]+ days)"),
        ("A100-80GB", "--dp 8 --batch 64 --accumulate 1 --tokens 10e9 --mfu 0.4", r"run +([\d.]+ days)"),
        ("RTX 4090", "--dp 1 --batch 16 --accumulate 32 --tokens 10e9 --mfu 0.4", r"run +([\d.]+ days)"),
        ("T4", "--batch 1", r"largest batch +(13)\b"),
        ("A100-80GB", "--batch 1", r"largest batch +(85)\b"),
    ],
)
def test_the_faq_s_days_and_batches_are_those_of_plan(device, options, line, capsys):
    from nanogpt.cli import main

    assert main(["plan", "--device", device, *options.split()]) == 0
    assert re.search(line, capsys.readouterr().out)[1] in FAQ
    assert "13 rows in fp16 on a T4" in FAQ and "85 in bf16 on an 80 GB A100" in FAQ
