"""Every shape and number of the cheat sheet is read off the running model, the configuration or the recorded ladder."""

import math
import re

import pytest
import torch
from browser import needs_chromium, opened
from built_site import HTML, built, needs_sphinx, served

from course.paths import ROOT
from course.site import pictures
from nanogpt import model
from nanogpt.labs.roofline.memory import memory_by_category
from nanogpt.labs.roofline.work import step_work
from nanogpt.model import GPT, GPTConfig, flops_by_part, flops_per_token, num_params, step_flops

SHEET = (ROOT / "site" / "cheatsheet.md").read_text(encoding="utf-8")
SHAPE = re.compile(r"\(((?:\d*[BTChdV]|\d+)?(?:, (?:\d*[BTChdV]|\d+))*)\)")
SMALL = GPTConfig(flash=False)
B, T = 2, 8
LETTERS = {"B": B, "T": T, "C": 768, "h": 12, "d": 64, "V": 50257}
LAYERS = "transformer.h.0."


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose head begins so."""
    lines = SHEET[SHEET.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


FORWARD = rows("forward")


def value(expression: str) -> int:
    """6C² or 3C as a number."""
    factors = re.findall(r"(\d+|[BTChdV])(²?)", expression)
    return math.prod((int(f) if f.isdigit() else LETTERS[f]) ** (2 if square else 1) for f, square in factors)


def shapes(cell: str) -> list[tuple[int, ...]]:
    """(B, T, 3C) (C) as tuples of numbers."""
    return [tuple(value(part) for part in found.split(", ") if part) for found in SHAPE.findall(cell)]


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return GPT(SMALL, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def seen(gpt) -> dict[str, list[tuple[int, ...]]]:
    """Shapes by the sheet's names, from one pass through GPT-2 small."""
    found, hooks = {}, []

    def keep(name, given):
        tensors = given if isinstance(given, list | tuple) else [given]
        found[name] = [tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor)]

    def watched(name, call):
        def inner(*args):
            keep(name, result := call(*args))
            return result

        return inner

    for path, module in gpt.named_modules():
        if path.startswith(LAYERS) or "." not in path.removeprefix("transformer."):
            name = path.removeprefix(LAYERS).removeprefix("transformer.")
            hooks.append(module.register_forward_hook(lambda m, given, result, name=name: keep(name, result)))
            hooks.append(
                module.register_forward_pre_hook(lambda m, given, name=name: keep(f"to {name}", given))
            )
    idx = torch.randint(50257, (B, T), generator=torch.Generator().manual_seed(0))
    keep("idx", idx)
    keep("targets", idx)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in ("split_heads", "attention_weights", "next_token_loss"):
            patch.setattr(model, name, watched(name, getattr(model, name)))
        gpt(idx, idx)
    for hook in hooks:
        hook.remove()
    found["parameters"] = [(name, tuple(p.shape)) for name, p in gpt.named_parameters()]
    return found


def names(row: list[str]) -> list[str]:
    return [f"to {name}" if row[1].startswith("to ") else name for name in re.findall(r"`([^`]+)`", row[1])]


@pytest.mark.parametrize("row", FORWARD, ids=lambda row: row[0])
def test_the_model_gives_the_shapes_of_the_sheet(row, seen):
    assert [shape for name in names(row) for shape in seen[name]] == shapes(row[4])


@pytest.mark.parametrize("row", [row for row in FORWARD if row[2]], ids=lambda row: row[0])
def test_weights_have_the_shapes_and_the_number_of_the_sheet(row, seen):
    def of(path: str, name: str) -> bool:
        return re.sub(r"^transformer\.(h\.\d+\.)?", "", path).rpartition(".")[0] == name

    mine = [(path, shape) for name in names(row) for path, shape in seen["parameters"] if of(path, name)]
    first = [shape for path, shape in mine if not re.search(r"\.h\.[1-9]", path)]
    if names(row) == ["lm_head"]:  # wte's matrix: counted there
        assert not mine
        first = [shape for path, shape in seen["parameters"] if path == "transformer.wte.weight"]
    assert first == shapes(row[2])
    assert sum(math.prod(shape) for _, shape in mine) == number(row[3])


def test_the_parameters_of_all_rows_are_all_parameters():
    total = number(re.search(r"\*\*Parameters\*\* ([\d,]+)", SHEET)[1])
    assert sum(number(row[3]) for row in FORWARD if row[3]) == total == num_params(SMALL)


def test_flops_of_the_rows_are_those_of_the_model(monkeypatch):
    monkeypatch.setitem(LETTERS, "T", 1024)
    of_blocks = sum(value(row[5]) for row in FORWARD if row[5] and names(row) != ["lm_head"])
    head = next(value(row[5]) for row in FORWARD if names(row) == ["lm_head"])
    forward, all_of_it = map(
        number, re.search(r"T = 1024: ([\d,]+) forward, .*? backward: ([\d,]+)", SHEET).groups()
    )
    assert 12 * of_blocks + head == forward == sum(flops_by_part(SMALL).values())
    assert all_of_it == flops_per_token(SMALL)
    step = float(re.search(r"a step ([\d.e]+)\. MFU", SHEET)[1])
    assert step == pytest.approx(step_flops(SMALL, 512, 1024), rel=1e-3)


def test_bytes_are_those_of_chapter_09():
    kept = re.search(r"weights (\S+) MB, gradients (\S+) MB, m and v (\S+) MB; .*?: ([\d,]+) MB", SHEET)
    due = memory_by_category(GPTConfig(), 4, 1024).values()
    assert list(map(number, kept.groups())) == [round(nbytes / 1e6) for nbytes in due]
    moved = re.search(r"(\d+) bytes a parameter in place of (\d+)", SHEET)
    for nbytes, fused in zip(moved.groups(), (True, False)):
        due = sum(work.nbytes for work in step_work(SMALL, B, T, fused=fused) if work.part == "optimizer")
        assert number(nbytes) * num_params(SMALL) == due


def test_the_floor_and_the_gains_are_the_recorded_ones():
    floor = re.search(r"entropy \(([\d.]+) a token in chapter 07's stories", SHEET)[1]
    notebook = (ROOT / "notebooks" / "07_training.ipynb").read_text(encoding="utf-8")
    assert re.search(rf"floor\D{{0,40}}{floor}", notebook)
    told = {row[0]: row[3] for row in rows("switch") if row[0] != "TF32"}
    assert told == {step["name"]: step["says"] for step in pictures.stairs("staircase")[1:]}


@needs_sphinx
@needs_chromium
@pytest.mark.slow
def test_on_paper_it_is_one_page():
    built()
    with served(HTML) as base, opened(base) as page:
        page.goto(f"{base}cheatsheet.html")
        pdf = page.pdf(format="A4", print_background=True)
    assert len(re.findall(rb"/Type\s*/Page[^s]", pdf)) == 1
