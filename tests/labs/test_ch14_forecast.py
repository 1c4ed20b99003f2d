"""Chapter 14: predictions count bytes and operations, and no rung changes a part that it does not claim to."""

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanogpt.labs.ladder import forecast
from nanogpt.labs.ladder.forecast import fresh_bytes, predict, predict_ladder, say_predicted
from nanogpt.labs.ladder.rungs import RUNGS, rungs_up_to, why_not_kept
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import PAGE, saved_bytes
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.labs.roofline.work import Fractions, predict_step
from nanogpt.model import GPT, CausalSelfAttention, GPTConfig, num_params

CPU = torch.device("cpu")
FLOPS = {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11, "float16": 4e11}
ROOF = Roofline("cpu", FLOPS, 2e10)


def seconds(name, part, fault=0.0, roof=ROOF, skip=("fp16",)):
    return predict(GPTConfig(), rungs_up_to(name, skip), 4, 64, roof, fault).get(part, 0)


def test_predictions_are_bytes_over_bandwidth():
    P, padded = num_params(GPTConfig()), num_params(GPTConfig(padded_vocab_size=50304))
    assert seconds("flash", "optimizer") == 84 * P / 2e10  # 80, and 4 for the gradient's norm
    assert seconds("fused AdamW", "optimizer") == 32 * padded / 2e10
    assert seconds("bf16 weights", "optimizer") == 34 * padded / 2e10
    assert seconds("flash", "weight casts") == 12 * P / 2e10
    assert seconds("kept memory", "weight casts") == seconds("bf16 weights", "weight casts") == 0
    assert seconds("kept memory", "page faults", fault=1e-6) == 0
    assert fresh_bytes(GPTConfig(flash=False), 4, 64) == 4 * 4 * 50257 * (4 * 64 + 768)
    pages = fresh_bytes(GPTConfig(flash=False), 4, 64) / PAGE
    assert seconds("float32", "page faults", fault=1e-6) == pytest.approx(1e-6 * pages)


def test_products_are_flops_over_the_rate_of_their_format():
    float32 = seconds("float32", "mlp")
    assert float32 == 3 * 2 * 256 * 12 * 8 * 768**2 / 1e11
    assert seconds("TF32", "mlp") == pytest.approx(float32 / 2)
    assert seconds("bf16", "mlp") == pytest.approx(float32 / 4)
    t4 = Roofline("cuda", {"float32": 1e11, "float16": 8e11}, 2e11)
    assert seconds("fp16", "mlp", roof=t4, skip=("TF32", "bf16")) == pytest.approx(float32 / 8)
    head = [seconds(name, "head") for name in ("flash", "nice numbers")]
    assert head[1] == pytest.approx(head[0] * 50304 / 50257)


def test_without_a_rung_the_work_is_chapter_09s():
    slow = Roofline("cpu", {"float32": 1e18}, 1e9)  # memory decides everywhere
    config = GPTConfig(flash=False)
    whole = predict_step(config, 4, 64, slow)
    parts = forecast.work_seconds(config, {"float32"}, 4, 64, slow)
    for part, second in parts.items():
        assert second == pytest.approx(sum(s for (name, _), s in whole.items() if name == part)), part


def test_each_rung_changes_the_parts_that_it_claims_to():
    changes = {
        "kept memory": {"page faults"},
        "TF32": {"qkv", "attention", "proj", "mlp", "head"},
        "bf16": {*forecast.PRODUCTS, "gelu", "cross-entropy"},
        "compile": {"attention", "residual", "cross-entropy"},
        "flash": {"attention"},
        "nice numbers": {"head", "cross-entropy", "embedding", "weight casts"},
        "fused AdamW": set(),
    }
    # what gets slower: more rows; a loss in float32, with casts
    costs = {"nice numbers": changes["nice numbers"], "bf16": {"cross-entropy"}}
    slow = Roofline("cuda", {name: 1e3 * rate for name, rate in FLOPS.items()}, 1e9)  # memory decides
    names = [name for name in RUNGS if name != "fp16"]
    for name, parts in changes.items():
        roof, below = ROOF if name == "TF32" else slow, names[names.index(name) - 1]
        before, after = (
            predict(GPTConfig(), rungs_up_to(n, ["fp16"]), 4, 512, roof, 1e-6) for n in (below, name)
        )
        changed = {part for part in before if after.get(part, 0) != before[part]}
        assert changed - {"optimizer"} <= parts and changed, name
        worse = {part for part in changed if after.get(part, 0) > before[part]} - {"optimizer"}
        assert worse <= costs.get(name, set()), name
        assert ("optimizer" in changed) == (name in ("nice numbers", "fused AdamW")), name


class Operations(TorchDispatchMode):
    """Notes what each operation but a view reads and writes: (numbers, bytes) of each tensor."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        words = ("empty", "detach", "_unsafe_view", "expand", "alias", "t.default")
        if not func.is_view and not any(word in str(func) for word in words):
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            self.noted.append([(t.numel(), t.nbytes) for t in tensors])
        return out


@pytest.mark.parametrize("way, dtype", [("float32", None), ("autocast on a CPU", torch.bfloat16)])
def test_bytes_of_a_score_are_those_that_operations_move(way, dtype):
    config = GPTConfig(block_size=64, n_layer=1, n_head=2, n_embd=48, vocab_size=10, flash=False)
    attention, x = CausalSelfAttention(config), torch.randn(3, 64, 48, requires_grad=True)
    with Operations() as moved:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            y = attention(x)
        y.float().sum().backward()
    scores = 3 * 2 * 64 * 64
    total = sum(nbytes for tensors in moved.noted for numel, nbytes in tensors if numel == scores)
    assert total / scores == forecast.SCORE_BYTES[way]


def test_bytes_of_a_compiled_score_are_its_passes():
    passes = {"scores written": 1, "softmax": 2, "weights read": 1, "their gradient written": 1}
    passes |= {"softmax backward": 3, "read for q, k": 2, "weights read for v": 1}
    assert [forecast.SCORE_BYTES[way] / sum(passes.values()) for way in ("compiled", "both")] == [4, 2]


@pytest.mark.parametrize("device, share", [("cuda", 1 / 2), ("cpu", 3 / 4)])
def test_a_compiled_model_moves_half_of_the_residual_and_compiled_blocks_three_quarters(device, share):
    """Half, where LayerNorm finds each sum in a register. Blocks that are compiled one by one have it for one of their two."""
    roof = Roofline(device, FLOPS, 2e10)
    before, after = (
        forecast.work_seconds(GPTConfig(), set(on), 4, 512, roof)["residual"] for on in ((), ("compile",))
    )
    assert after / before == pytest.approx(share)


SPOKEN = [1000, 333, 300, 130, 96, 93, 90]  # the lecture's rungs, published milliseconds


def ladder_ms(*reached):
    ladder = predict_ladder(PEAKS["A100-80GB"], GPTConfig(), 16, 1024, *reached)
    return [1e3 * sum(parts.values()) for parts in ladder.values()]


def test_the_forecast_is_within_a_tenth_of_all_seven_published_rungs(capsys):
    ratios = [spoken / ms for spoken, ms in zip(SPOKEN, ladder_ms(forecast.REACHED, forecast.START))]
    assert all(0.9 < ratio < 1.1 for ratio in ratios), ratios
    say_predicted("A100-80GB", GPTConfig(), 16, 1024)
    said = capsys.readouterr().out
    assert "fp16  " not in said and "kept memory" not in said and "28.6 GiB" in said
    if forecast.PUBLISHED.exists():  # not where a checkpoint tries the module
        assert "published 1000 ms" in said
    say_predicted("A100-80GB", GPTConfig(), 8, 1024)
    assert "published" not in capsys.readouterr().out


def test_fractions_slow_a_forecast_down_and_a_start_counts_where_there_is_little_to_do():
    half = ladder_ms(Fractions(0.5, 0.5))
    assert half == pytest.approx([2 * t for t in ladder_ms()])
    a100 = PEAKS["A100-80GB"]
    small = predict_ladder(a100, GPTConfig(), 1, 8, forecast.REACHED, 5e-5)["float32"]
    assert 1e3 * sum(small.values()) == pytest.approx(5e-2 * (47 * 12 + 23)) and small["starts"] > 0
    assert predict_ladder(a100, GPTConfig(), 16, 1024, forecast.REACHED, 5e-6)["float32"]["starts"] == 0


@pytest.mark.parametrize("T, share", [(128, 7 / 6), (1024, 0.65625), (4096, 7 / 6 * 33 / 64)])
def test_a_flash_kernel_computes_the_tiles_up_to_the_diagonal(T, share):
    assert forecast.flash_share(T) == pytest.approx(share)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_kernels_are_those_that_a_step_starts(flash, half):
    from tutor import released_model

    on = {"float32"} | ({"flash"} if flash else set()) | ({"bf16"} if half else set())
    for layers in (1, 3):
        config = GPTConfig(block_size=16, vocab_size=100, n_layer=layers, n_head=2, n_embd=32, flash=flash)
        model, ids = released_model("14")(config), torch.randint(100, (2, 2, 16))
        with Operations() as counted:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(*ids)[1]
            loss.backward()
        assert abs(len(counted.noted) - forecast.kernels(config, on)) <= 2


@pytest.mark.parametrize("way", ["float32", "autocast", "masters"])
def test_what_a_step_keeps_is_what_autograd_saves(way):
    """On a CPU; its softmax under autocast has 16 bits, so the score is left to a flash kernel here."""
    kept = {}
    for layers, vocab in ((2, 50), (4, 50), (2, 100)):
        config = GPTConfig(block_size=16, vocab_size=vocab, n_layer=layers, n_head=2, n_embd=32)
        for B in (2, 4):
            model = GPT(config).bfloat16() if way == "masters" else GPT(config)
            ids = torch.randint(vocab, (2, B, 16))
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                kept[layers, vocab, B] = saved_bytes(lambda: model(*ids), model.parameters())  # noqa: B023
    tokens = 2 * 16  # from 2 rows to 4
    layer = (kept[4, 50, 4] - kept[4, 50, 2] - kept[2, 50, 4] + kept[2, 50, 2]) / 2 / tokens
    logit = (kept[2, 100, 4] - kept[2, 100, 2] - kept[2, 50, 4] + kept[2, 50, 2]) / 50 / tokens
    channel, _, logits = forecast.SAVED[way]
    assert 0 <= layer - 32 * channel <= 32, "a few numbers a row are left out"
    assert logit == logits


def test_memory_of_the_lectures_batch_and_of_a_t4s():
    GiB = 2**30
    assert forecast.step_memory(GPTConfig(), {"float32"}, 16, 1024) / GiB == pytest.approx(28.6, abs=0.5)
    flash = forecast.step_memory(GPTConfig(), {"float32", "flash"}, 16, 1024)
    assert flash / GiB == pytest.approx(19.6, abs=0.5)
    assert forecast.fitting_batch("A100-80GB", GPTConfig(), 16, 1024) == 16
    assert forecast.fitting_batch("T4", GPTConfig(), 16, 1024) == 4


def test_a_t4s_sheet_goes_by_fp16():
    ladder = predict_ladder(PEAKS["T4"], GPTConfig(), 4, 1024)
    assert list(ladder) == ["float32", "fp16", "compile", "flash", "nice numbers", "fused AdamW"]
    assert ladder["fp16"]["mlp"] == pytest.approx(ladder["float32"]["mlp"] * 8.1 / 65)


def test_every_sheet_has_a_ladder_that_never_gets_slower_by_more_than_padding():
    for name, sheet in PEAKS.items():
        ms = [1e3 * sum(parts.values()) for parts in predict_ladder(sheet, GPTConfig(), 4, 1024).values()]
        assert all(math.isfinite(t) and t > 0 for t in ms), name
        assert all(b < 1.002 * a for a, b in pairwise(ms)), name
        assert forecast.CARD_GB[name] > 0


FAULTS = """
import resource, torch
from nanogpt.labs.ladder.forecast import fresh_bytes
from nanogpt.labs.ladder.rungs import keep_memory, make_step
from nanogpt.labs.roofline.memory import PAGE
from nanogpt.model import GPTConfig
if {keep}:
    keep_memory()
config = GPTConfig(block_size=96, n_layer=2, n_head=4, n_embd=192, flash=False)
(_, step), counts = make_step(config, set(), 2, 96, torch.device("cpu")), []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(counts[4:]), fresh_bytes(config, 2, 96) / PAGE)
"""


@pytest.mark.slow
def test_faults_are_those_predicted_and_none_where_memory_is_kept():
    if reason := why_not_kept(CPU):
        pytest.skip(reason)
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not huge.exists() or "[always]" in huge.read_text():
        pytest.skip("this system's pages are not 4 KiB")
    counts = {}
    for keep in (False, True):
        script = FAULTS.format(keep=keep)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        counts[keep], predicted = map(float, done.stdout.split())
    assert 0.8 < counts[False] / predicted < 1.5, "glibc may give back smaller blocks as well"
    assert counts[True] < 0.02 * counts[False]
