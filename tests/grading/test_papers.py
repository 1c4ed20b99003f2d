"""The final: every number of the final's key comes out of the course's code, and no answer is handed out."""

import math
import re
from itertools import pairwise

import pytest
import torch

from course.cli import main
from course.exercises.release import KEPT_BACK, release_paper, write_key
from course.exercises.sets import EXERCISES, PAPERS, RELEASED, SOLUTION, paper
from course.paths import CourseError
from nanogpt.labs.parallel.zero import state_bytes
from nanogpt.model import SIZES, GPTConfig, attention_weights, num_params
from nanogpt.sampling import token_probs
from nanogpt.tokenizer import learn_merges, replace

FINAL = paper("final")
QUESTIONS = {
    int(number): text
    for number, text in re.findall(r"^## (\d+) · [^\n]+\n(.+?)(?=^## |\Z)", FINAL, re.M | re.S)
}
POINTS = re.compile(r"\((\d) points?\b")


def key(number: int) -> str:
    return SOLUTION.search(QUESTIONS[number])["solution"]


def bold(number: int) -> list[str]:
    return re.findall(r"\*\*(.+?)\*\*", key(number))


def text() -> list[str]:
    ids = list(b"aaabdaaabac")
    pairs = list(pairwise(ids))
    first = learn_merges({bytes(ids): 1}, 1)[0]
    assert first == (97, 97)
    return [str(pairs.count(first)), str(len(replace(ids, first, 256)))]


def floor() -> list[str]:
    entropy = lambda probs: -sum(p * math.log(p) for p in probs)  # noqa: E731
    nats = entropy([1 / 2, 1 / 4, 1 / 4]) + entropy([1 / 4] * 4)
    return [f"{nats:.3f}", f"{nats / 4:.3f}"]


def attention() -> list[str]:
    q = torch.eye(3)
    scores = torch.tensor([[0, 0, 0], [0, math.log(2), math.log(5)], [0, math.log(2), math.log(3)]])
    weights = attention_weights(q, math.sqrt(3) * scores.T)  # q @ kᵀ / √d is the table of scores
    values = torch.tensor([6.0, 12.0, 0.0])
    late = (scores.softmax(-1) * torch.ones(3, 3).tril())[1]
    assert abs(late.sum() - 3 / 8) < 1e-6 and abs(late @ values - 3.75) < 1e-5
    return [f"{weights[2] @ values:.0f}", f"{weights[1] @ values:.0f}"]


def gpt() -> list[str]:
    shapes = [GPTConfig(128, 1000, n_layer=2, n_head=n_head, n_embd=64) for n_head in (4, 8)]
    counts = [num_params(shape) for shape in shapes]
    assert counts[0] == counts[1] == 64_000 + 8_192 + 2 * 49_984 + 128
    return [f"{counts[0]:,}", f"{math.log(1000):.1f}"]


def training() -> list[str]:
    found = []
    for gradient in (0.003, 3.0):
        weight = torch.nn.Parameter(torch.tensor(1.0))
        weight.grad = torch.tensor(gradient)
        torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-12).step()
        found.append(f"{weight.item():.3f}")
    return found


def sampling() -> list[str]:
    probs = token_probs(torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log(), top_p=0.8)[0]
    small = SIZES["gpt2"]
    cache = 2 * small.n_layer * small.n_embd * 1024 * 2
    return [str(int((probs > 0).sum())), f"{probs[0]:.3f}", f"{cache / 2**20:.0f}"]


def roofline() -> list[str]:
    def product(rows: int) -> tuple[float, float]:
        return 2 * rows * 4096**2, 2 * (2 * rows * 4096 + 4096**2)

    flops, moved = product(64)
    peak, bandwidth = 300e12, 2e12
    least = [max(f / peak, b / bandwidth) for f, b in (product(64), product(128))]
    assert least[0] == moved / bandwidth and f"{1e6 * least[1]:.1f}" == "17.8"
    assert product(128)[0] / product(128)[1] < peak / bandwidth
    return [f"{peak / bandwidth:.0f}", f"{flops / moved:.1f}", f"{1e6 * least[0]:.1f}"]


def precision() -> list[str]:
    weight, master = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0)
    for _ in range(100):
        weight, master = weight - 0.001, master - 0.001
    assert weight.dtype == torch.bfloat16 and torch.finfo(torch.float16).smallest_normal * 2**-10 > 5.9e-8
    return [f"{weight.item():.1f}", f"{master.item():.1f}"]


def a_real_run() -> list[str]:
    nats = (100 * 2.0 + 20 * 4.0) / 120
    return [f"{nats:.3f}", f"{math.exp(nats):.1f}", f"{nats / math.log(2) / 4.2:.2f}"]


def many_processes() -> list[str]:
    stages = [f"{sum(state_bytes(1_300_000_000, 8, stage)) / 1e9:.3f}" for stage in (1, 2, 3)]
    rounded = [f"{float(each) + 1e-9:.2f}" for each in stages]
    gathers, reduces = 1, 4  # of stage 2, with four micro-batches; stage 1 has one of each
    return [*rounded, f"{(gathers + reduces) / 2:g}", f"{100 * 3 / (12 + 3):.0f}"]


COMPUTED = [text, floor, attention, gpt, training, sampling, roofline, precision, a_real_run, many_processes]


@pytest.mark.parametrize(
    ("number", "computed"), enumerate(COMPUTED, 1), ids=lambda x: getattr(x, "__name__", str(x))
)
def test_a_number_of_the_key_is_what_the_code_gives(number, computed):
    assert bold(number) == computed()


def test_the_final_has_ten_questions_of_six_points():
    assert list(QUESTIONS) == list(range(1, 11)) == list(range(1, len(COMPUTED) + 1))
    assert {sum(map(int, POINTS.findall(key(number)))) for number in QUESTIONS} == {6}


def test_the_points_of_the_project_add_up():
    project = paper("project")
    tables = project.split("\n## ")
    milestones, automatic, by_hand = (
        next(part for part in tables if part.startswith(name))
        for name in ("Milestones", "What is graded by a command", "What a person grades")
    )
    assert sum(map(int, re.findall(r"\| (\d+) \|$", milestones, re.M))) == 100
    assert sum(map(int, re.findall(r"^\| (\d+) \|", automatic, re.M))) == 30 and "30 points" in automatic
    assert sum(map(int, re.findall(r"^\| (\d+) \|", by_hand, re.M))) == 70 and "70 points" in by_hand


def test_no_answer_is_handed_out_and_the_key_is_kept_back(tmp_path, capsys):
    assert main(["exercises", "release", *PAPERS, "--to", str(tmp_path)]) == 0
    assert main(["exercises", "key", "final", "--to", str(tmp_path / "keys")]) == 0
    assert capsys.readouterr().out.count(" written\n") == 3
    given = "".join(path.read_text("utf-8") for path in tmp_path.glob("*.md"))
    kept = (tmp_path / "keys/final-key.md").read_text()
    for number in QUESTIONS:
        assert key(number).strip() not in given and key(number).strip() in kept
    assert "###" not in given and given.count("## ") >= 14
    assert all(f"exercises/{name}.md".startswith(KEPT_BACK) for name in PAPERS)
    assert "tests/grading/".startswith(KEPT_BACK), "this file has answers"
    with pytest.raises(CourseError, match="handed out to students"):
        write_key("final", RELEASED)


def test_an_answer_without_an_end_is_not_handed_out(tmp_path, monkeypatch):
    (tmp_path / "final.md").write_text("# Final\n\n### BEGIN SOLUTION\n42\n")
    monkeypatch.setattr("course.exercises.sets.EXERCISES", tmp_path)
    with pytest.raises(CourseError, match="not handed out"):
        release_paper("final", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_numbers_of_the_board_plans_are_right():
    """Those that are computed in a line; the others are counted on the board itself."""
    guide = (EXERCISES / "README.md").read_text("utf-8")
    softmax = lambda logits: [math.exp(x) / sum(map(math.exp, logits)) for x in logits]  # noqa: E731
    small, tokens = SIZES["gpt2"], 8 * 1024
    weights, logits = 4 * num_params(small), 4 * tokens * 50_257
    mib = [n / 2**20 for n in (weights, weights, 2 * weights, 4 * 12 * 16 * tokens * 768, logits)]
    due = [
        f"{2 * math.log(2) / 3:.3f}",
        f"{num_params(small):,}",
        ", ".join(f"{p:.2f}" for p in softmax([2, 1, 0])),
        ", ".join(f"{p:.2f}" for p in softmax([4, 2, 0])),
        f"sum {1 + math.exp(-2):.3f}",
        f"sum {1 + math.exp(-2) + math.exp(-1):.3f}",
        f"{2.0 / 4 / math.log(2):.2f} and {1.2 / 2 / math.log(2):.2f} bits per",
        f"{2 * 8 * 768:,} numbers of {768 * 768:,}, or {200 * 8 / 768:.1f}%",
        ", ".join(f"{sum(state_bytes(1, 4, stage)):g}" for stage in range(3)),
        "weights {:,.0f} MiB, gradients {:,.0f}, moments {:,.0f}, ".format(*mib),
        "activations of the blocks {:,.0f}, logits {:,.0f}".format(*mib[3:]),
    ]
    assert not [text for text in due if text not in guide]
