"""README, FAQ, CITATION and CONTRIBUTING: what a stranger reads first is true, short, and leads somewhere."""

import json
import re
import sys
from importlib.util import find_spec
from statistics import fmean

import pytest
import torch
import yaml

import nanogpt
from course.exercises.hours import minutes
from course.notebooks.address import is_published, repository
from course.paths import ROOT, chapters
from course.site import pictures, readme
from course.site.chapters import OPTIONAL
from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
from nanogpt.labs.roofline.sheets import peak_of
from nanogpt.model import GPTConfig

README, FAQ, CONTRIBUTING = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "site/faq.md", "CONTRIBUTING.md")
)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "site/index.md",
    "site/api.md",
    "site/faq.md",
    "site/cheatsheet.md",
    "site/results.md",
    "slurm/README.md",
]
QUOTES = re.findall(r"^> (.+)$", FAQ, re.MULTILINE)


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


def test_the_blocks_of_readme_are_all_there_and_a_changed_one_is_noticed():
    assert set(re.findall(r"<!-- (\w+) -->", README)) == set(readme.BLOCKS)
    assert (
        readme.filled(
            README.replace("with 0.5 million parameters", "with 0.5 billion parameters"), readme.README
        )
        == README
    )


def test_the_hours_of_the_sittings_add_up_to_those_of_the_parts():
    planned = minutes()
    rows = re.findall(
        r"^\| (\d\d[a-z]?)( ◇)? \| \[.*?\]\(.*?\) \| (?:(\d+) h )?(\d+)(?: min)? \|", README, re.MULTILINE
    )
    assert {row[0]: 60 * int(row[2] or 0) + int(row[3]) for row in rows} == planned
    assert {row[0] for row in rows if row[1]} == OPTIONAL & set(chapters())
    main = sum(time for chapter, time in planned.items() if chapter not in OPTIONAL) / 60
    assert (
        f"About {main:.0f} hours for the {len(set(planned) - OPTIONAL)} sittings of the main road" in README
    )


def test_what_readme_says_of_the_model_is_recorded_and_printed():
    assert "it still names the right one in every story" in README and "never the name" in README
    runs = json.loads((ROOT / "data/measurements/learned.json").read_text(encoding="utf-8"))["runs"]
    assert all(run[whose]["both"] == 1 for run in runs["as in chapter 07"] for whose in ("hers", "his"))
    page = (ROOT / "notebooks/07b_learned.ipynb").read_text(encoding="utf-8")
    assert re.search(r"by the pronoun in (\d+) of \1 stories", page)


def test_readme_s_first_screen_is_a_story_with_its_command():
    head = README.partition("## ")[0]
    assert re.search(r"^> \w+", head, re.MULTILINE) and "python -m nanogpt sample" in head
    assert head.index("> ") < head.index("loss-light.png") < head.index("staircase-light.png")


def test_what_readme_says_of_an_h100_was_recorded_and_forecast():
    run = json.loads((ROOT / "data/measurements/h100.json").read_text(encoding="utf-8"))
    ms = {rung["name"]: rung["ms"] for rung in run["rungs"]}
    ladder = predict_ladder(peak_of(run["device"]), GPTConfig(), run["batch"], run["seq"], REACHED, START)
    forecast = {name: 1e3 * sum(ladder[name].values()) for name in ms}
    first, last = ms["float32"], ms["bf16 weights"]
    assert f"from {first:.0f} to {last:.0f} ms a step: {first / last:.1f} times as fast" in README
    assert (
        f"{forecast['float32']:.0f} and {forecast['bf16 weights']:.0f} ms, every rung within a sixth"
        in README
    )
    assert all(6 / 7 < ms[name] / forecast[name] < 7 / 6 for name in ms)
    assert all(rung["agrees"] for rung in run["rungs"]), "a rung computes something else"
    measured = README.partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in measured.splitlines() if line.startswith("| ")]
    assert "All but the last two rows were measured on two cores" in measured
    assert [bool(re.search("H[12]00", row)) for row in rows] == [False] * (len(rows) - 2) + [True, True]


@pytest.mark.parametrize(
    "name", ["README.md", "site/index.md", "site/faq.md", "site/cheatsheet.md", "slurm/README.md"]
)
def test_no_page_claims_what_is_not_so(name):
    """What a review found to be wrong; and nothing about Colab or Binder in README while the repository has no address."""
    text = (ROOT / name).read_text(encoding="utf-8")
    wrong = [
        "any cluster",
        "14 rows on a T4",
        "Above 11, something is wrong",
        "What you write is what you use",
    ]
    assert not [claim for claim in wrong if claim in text]
    if not is_published(repository()) and name in ("README.md", "site/index.md"):
        assert not re.search(r"colab|binder", text, re.IGNORECASE), "there is nothing to open yet"


def test_what_is_said_of_rungs_that_do_not_help_is_what_was_recorded():
    steps = pictures.staircase_steps(json.loads(pictures.LADDER.read_text(encoding="utf-8")))
    slower = sum(step["slower"] for step in steps)
    nothing = sum(step["says"].startswith("not measurable") for step in steps)
    assert (slower, nothing) == (1, 1)
    assert "one rung made a step slower and one changed nothing measurable" in FAQ


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
        recorded = json.loads((ROOT / f"data/measurements/{name}.json").read_text(encoding="utf-8"))
        ms[name] = {rung["name"]: rung["ms"] for rung in recorded["rungs"]}
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
    import tomllib

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


def what_is_said(call, monkeypatch, capsys, tmp_path) -> str:
    """What a call prints or raises."""
    try:
        call(monkeypatch, tmp_path)
    except Exception as error:
        return str(error)
    said = capsys.readouterr()
    return said.out + said.err


def no_gpu(monkeypatch, tmp_path):
    from nanogpt.device import pick_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    pick_device("cuda")


def old_python(monkeypatch, tmp_path):
    from course.machine import setup_env

    class Old(tuple):
        pass

    monkeypatch.setattr(sys, "version_info", Old((3, 10, 12)))
    monkeypatch.setattr(sys, "version", "3.10.12 (main)")
    setup_env.main()


def no_network_for_pip(monkeypatch, tmp_path):
    from course.machine import setup_env

    monkeypatch.setattr(setup_env, "has_pip", lambda: True)
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 1}))
    setup_env.main()


def intel_mac(monkeypatch, tmp_path):
    from course.machine import setup_env

    print(setup_env.why_no_torch("darwin", "x86_64"))


def no_download(monkeypatch, tmp_path):
    from course.machine.data import download

    def refused(*_, **__):
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("urllib.request.urlopen", refused)
    download("http://127.0.0.1:9/x", ROOT / "data" / "downloads" / "none" / "x", "0", tries=1, pause=0)


def no_hub(monkeypatch, tmp_path):
    from huggingface_hub import errors

    from nanogpt.pretrained import find_checkpoint

    def offline(*_, local_files_only=False, **__):
        raise errors.LocalEntryNotFoundError("no") from (
            None if local_files_only else errors.OfflineModeIsEnabled("no")
        )

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    find_checkpoint("gpt2")


def no_vocabulary(monkeypatch, tmp_path):
    import requests
    import tiktoken

    from nanogpt.tokenizer import BPETokenizer

    def offline(*_, **__):
        raise requests.exceptions.ConnectionError("no")

    monkeypatch.setattr(requests, "get", offline)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})  # what an earlier test has loaded
    BPETokenizer.gpt2()


def skipped_chapter(monkeypatch, tmp_path):
    from course.states import started

    monkeypatch.setattr(started, "grows", lambda: True)
    monkeypatch.setattr(started, "built", lambda: ["00", "01"])
    print(started.not_built_yet(ModuleNotFoundError("No module named 'nanogpt.pretrained'")))


def a_copy(monkeypatch, tmp_path):
    from course import paths

    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    for name in ("04_attention.ipynb", "04_attention-Copy1.ipynb"):
        (tmp_path / "notebooks" / name).touch()
    paths.find(tmp_path / "notebooks", "04", ".ipynb")


def nan_loss(monkeypatch, tmp_path):
    from nanogpt.model import GPT, GPTConfig
    from nanogpt.training import train

    model = GPT(GPTConfig(8, 10, n_layer=1, n_head=1, n_embd=8))
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    train(model, type("Stream", (), {"next_batch": lambda _: (ids, ids)})(), 1, 1e-3)


def no_compiler(monkeypatch, tmp_path):
    from nanogpt.labs.ladder.rungs import why_not_compiled

    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CXX", raising=False)
    print(why_not_compiled(torch.device("cpu")))


def no_tf32(monkeypatch, tmp_path):
    from nanogpt.precision import why_not

    print(why_not("tf32", torch.device("cpu")))


def no_bf16(monkeypatch, tmp_path):
    from nanogpt import precision

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(precision, "matmul_formats", lambda device: ["float32", "float16", "fp16"])
    print(precision.why_not("bf16", torch.device("cuda")))


def unknown_id(monkeypatch, tmp_path):
    from nanogpt.model import GPT, GPTConfig

    GPT(GPTConfig(16, 10, n_layer=1, n_head=1, n_embd=8))(torch.full((1, 2), 10))


def long_prompt(monkeypatch, tmp_path):
    from nanogpt.model import GPT, GPTConfig

    GPT(GPTConfig(16, 10, n_layer=1, n_head=1, n_embd=8))(torch.zeros(1, 20, dtype=torch.int64))


CAUSES = [
    no_gpu, old_python, no_network_for_pip, intel_mac, no_download, no_hub, no_vocabulary,
    skipped_chapter, a_copy,
    nan_loss, no_compiler, no_tf32, no_bf16, unknown_id, long_prompt,
]  # fmt: skip


@pytest.mark.parametrize("cause, quote", list(zip(CAUSES, QUOTES)), ids=[cause.__name__ for cause in CAUSES])
def test_what_the_faq_quotes_is_what_the_course_prints(cause, quote, monkeypatch, capsys, tmp_path):
    if cause is no_vocabulary and find_spec("requests") is None:
        pytest.skip("tiktoken brings requests")
    assert quote in what_is_said(cause, monkeypatch, capsys, tmp_path)


def test_every_quote_of_the_faq_is_made_to_happen():
    assert len(QUOTES) == len(CAUSES)


@pytest.mark.parametrize("device, gpus", [("A100-80GB", 1), ("A100-80GB", 8), ("RTX 4090", 1)])
def test_the_faq_s_days_are_those_of_plan(device, gpus, capsys):
    from nanogpt.cli import main

    batch = 64 if gpus > 1 or "A100" in device else 16
    rounds = 512 // batch // gpus
    options = (
        f"plan --device|{device}|--dp|{gpus}|--batch|{batch}|--accumulate|{rounds}|--tokens|10e9|--mfu|0.4"
    )
    main(options.replace(" ", "|", 1).split("|"))
    assert re.search(r"run +([\d.]+ days)", capsys.readouterr().out)[1] in FAQ


@pytest.mark.parametrize(
    ("device", "words"),
    [("T4", "13 rows in fp16 on a T4"), ("A100-80GB", "85 in bf16 on an 80 GB A100")],
)
def test_the_faq_s_largest_batches_are_those_of_plan(device, words, capsys):
    from nanogpt.cli import main

    assert main(["plan", "--device", device, "--batch", "1"]) == 0
    assert words.split()[0] == re.search(r"largest batch +(\d+)", capsys.readouterr().out)[1]
    assert words in FAQ


def test_what_readme_says_of_peers_on_an_h200_is_recorded():
    rows = json.loads((ROOT / "data/measurements/h200-peers.json").read_text(encoding="utf-8"))["rows"]
    line = next(line for line in README.splitlines() if "on an H200" in line)
    told = [float(number) for number in re.findall(r"\d+\.\d", line)]
    measured = [round(fmean(row["ms"]), 1) for row in rows if row.get("ms") and row["batch"] == 16]
    assert set(told) == set(measured), (told, measured)
