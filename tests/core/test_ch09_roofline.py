"""Laws of measuring: a clock that waits, rates that count all the work, and data sheets that belong to the card."""

import math
from types import SimpleNamespace

import pytest
import torch

from nanogpt.device import matmul_formats
from nanogpt.labs.roofline import clock as instruments
from nanogpt.labs.roofline.clock import (
    Roofline,
    faster,
    gain_of,
    matmul_flops,
    measure,
    measure_roofline,
    timings,
)
from nanogpt.labs.roofline.sheets import PEAKS, peak_of
from nanogpt.model import mfu

CPU = torch.device("cpu")


@pytest.fixture
def device(monkeypatch):
    """A device with a queue and a clock of its own: work is done, and takes time, when somebody waits for it."""
    fake = SimpleNamespace(now=0.0, queued=0.0, calls=0)

    def wait(_):
        fake.now, fake.queued = fake.now + fake.queued, 0.0

    monkeypatch.setattr(instruments, "synchronize", wait)
    monkeypatch.setattr(instruments.time, "perf_counter", lambda: fake.now)
    return fake


def queue_seconds(device, costs):
    """A call that puts the next of `costs` into the queue and returns at once."""
    costs = iter(costs)

    def call():
        device.queued += next(costs)
        device.calls += 1

    return call


def test_measure_waits_for_the_queue_and_leaves_the_warm_up_out(device):
    timing = measure(queue_seconds(device, [100.0, 50.0, 1.0, 2.0, 3.0, 4.0, 5.0]), CPU, repeats=5, warmup=2)
    assert timing.times == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert (timing.q1, timing.median, timing.q3) == (2.0, 3.0, 4.0)
    assert device.calls == 7


def test_unless_told_otherwise_twenty_calls_count_and_three_do_not_and_one_shows_no_spread(device):
    assert len(measure(queue_seconds(device, [1.0] * 23), CPU).times) == 20 and device.calls == 23
    with pytest.raises(ValueError, match="repeats=1"):
        measure(lambda: None, CPU, repeats=1)


def test_work_queued_before_is_not_charged(device):
    device.queued = 77.0
    assert timings(queue_seconds(device, [1.0, 2.0]), CPU, repeats=2) == [1.0, 2.0]


# Which of two is faster


def test_each_pair_is_compared_by_itself_and_neither_is_always_first(device):
    """A machine that gets slower by half with every call: within a pair the one that is first seems faster."""
    order, seconds = [], iter(1.5**n for n in range(100))

    def calls(name):
        def call():
            order.append(name)
            device.queued += next(seconds)

        return call

    gain = faster(calls("a"), calls("b"), CPU, pairs=20, warmup=1)
    assert order == ["a", "b"] * 2 + ["b", "a", "a", "b"] * 9 + ["b", "a"]
    assert not gain.sure and gain.low == pytest.approx(1 / 1.5) and gain.high == pytest.approx(1.5)


def test_a_factor_survives_a_machine_that_drifts(device):
    """Twice as much work, on a machine whose speed wanders by a factor of ten between the pairs."""
    speed = iter([1.0] * 6 + [s for n in range(20) for s in (1 + n / 2, 1 + n / 2)])

    def work(amount):
        def call():
            device.queued += amount * next(speed)

        return call

    gain = faster(work(2.0), work(1.0), CPU, pairs=20, warmup=3)
    assert gain.ratio == gain.low == gain.high == 2 and gain.sure


def test_a_call_is_compared_with_itself_call_by_call(device):
    """One function given twice is timed twice a pair, and is no faster than itself for certain."""
    same = queue_seconds(device, [1.0] * 6 + [float(1 + n % 3) for n in range(40)])
    gain = faster(same, same, CPU, pairs=20, warmup=3)
    assert device.calls == 46 and not gain.sure and gain.low < gain.high


@pytest.mark.parametrize("n, left_out", [(6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (40, 13)])
def test_the_interval_is_the_sign_test_s(n, left_out):
    """Conover, Practical Nonparametric Statistics, §3.2: at most 2.5% of n fair coins' outcomes on each side."""
    gain = gain_of([float(i) for i in reversed(range(n))])
    assert (gain.low, gain.high) == (left_out, n - 1 - left_out) and gain.ratio == (n - 1) / 2
    tail = sum(math.comb(n, k) for k in range(left_out + 1)) / 2**n
    assert tail <= 0.025 < tail + math.comb(n, left_out + 1) / 2**n


def test_the_interval_holds_the_median_as_often_as_it_says():
    g = torch.Generator().manual_seed(0)
    draws = torch.randn(2000, 20, generator=g).exp() * 1.25  # skewed, and the median is 1.25
    held = sum(gain_of(row).low <= 1.25 <= gain_of(row).high for row in draws.tolist())
    assert 0.945 < held / 2000 < 0.972


def test_five_pairs_are_too_few_and_a_difference_is_sure_only_without_one():
    with pytest.raises(ValueError, match="5"):
        gain_of([2.0] * 5)
    assert gain_of([1.1] * 6).sure and gain_of([0.9] * 6).sure
    assert not gain_of([0.99, *[1.1] * 5]).sure
    assert str(gain_of([1.5] * 6)) == "1.50× (1.50 to 1.50)"


# Rates


def test_mfu_is_a_share():
    assert mfu(flops=50.0, seconds=2.0, peak_flops=100.0) == 0.25
    for seconds, peak in [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)]:
        with pytest.raises(ValueError):
            mfu(1.0, seconds, peak)


@pytest.fixture
def seen(monkeypatch):
    """measure() tells of a fast call, a usual one and a slow one; here are the switch and the format of what was called."""
    seen = []

    def fake(call, device, repeats):
        seen.append((torch.get_float32_matmul_precision(), call().dtype))
        return instruments.Timing(2.0, 1.5, 5.0, (1.0, 2.0, 9.0))

    monkeypatch.setattr(instruments, "measure", fake)
    return seen


def test_a_product_of_n_by_n_matrices_is_2n3_operations_in_the_fastest_time(seen):
    assert matmul_flops(CPU, "float32", 32) == 2 * 32**3 / 1.0
    assert matmul_flops(CPU, torch.bfloat16, 8) == 2 * 8**3


def test_an_emulated_product_that_takes_seconds_is_not_repeated(monkeypatch):
    """Without bfloat16 instructions 1024³ can take two seconds; thirteen calls would be half a minute."""
    monkeypatch.setattr(instruments, "timings", lambda call, device, repeats: [3.0, 2.0][:repeats])
    monkeypatch.setattr(instruments, "measure", lambda *_: pytest.fail("it is measured again"))
    assert matmul_flops(CPU, "bfloat16", 8) == 2 * 8**3 / 2.0


def test_measuring_draws_no_global_random_number_and_leaves_the_tf32_switch_alone(seen):
    torch.manual_seed(0)
    expected = torch.randn(3, generator=torch.Generator().manual_seed(0))
    matmul_flops(CPU, "tf32", 8)
    assert torch.equal(torch.randn(3), expected)
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_is_on_for_tf32_alone(seen):
    for name in ("tf32", "float32"):
        matmul_flops(CPU, name, 8)
    assert seen == [("high", torch.float32), ("highest", torch.float32)]


def test_a_roofline_holds_each_format_and_a_copy_which_reads_each_byte_and_writes_it(seen):
    flops = dict.fromkeys(("float32", "bfloat16"), 2 * 8**3 / 1.0)
    assert measure_roofline(CPU, 8, mebibytes=3) == Roofline("cpu", flops, 2 * 3 * 2**20 / 1.0)
    assert [dtype for _, dtype in seen] == [torch.float32, torch.bfloat16, torch.uint8]


@pytest.mark.parametrize(
    "capability, hip, formats",
    [
        ((7, 5), None, ["float32", "float16"]),
        ((8, 0), None, ["float32", "tf32", "bfloat16", "float16"]),
        ((9, 4), "6.4", ["float32", "bfloat16", "float16"]),  # an MI300 reports 9.4
    ],
)
def test_what_a_gpu_multiplies(monkeypatch, capability, hip, formats):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert matmul_formats(torch.device("cuda:0")) == formats


# The roofline


def test_the_roofline_is_the_lower_of_two_limits():
    machine = Roofline("x", {"float32": 100.0, "bfloat16": 400.0}, bandwidth=10.0)
    assert machine.ridge() == 10 and machine.ridge("bfloat16") == 40
    for flops, nbytes, reached in [(1000, 1, 100), (1000, 100, 100), (500, 100, 50), (1, 1000, 0.01)]:
        assert machine.seconds(flops, nbytes) == pytest.approx(flops / reached)
    assert machine.seconds(2000, 100, "bfloat16") == pytest.approx(2000 / 200)


# Data sheets


@pytest.mark.parametrize(
    "name, half, bandwidth",
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100-PCIE-40GB", 312, 1555),
        ("NVIDIA A800 80GB PCIe", 312, 1935),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008),
        ("Tesla V100S-PCIE-32GB", 130, 1134),
        ("Tesla T4", 65, 320),
        ("A100-80GB", 312, 2039),  # the table's own name
    ],
)
def test_peaks_are_found_by_the_name_the_driver_gives(name, half, bandwidth):
    peak = peak_of(name)
    assert (peak.half, peak.bandwidth) == (half, bandwidth)


@pytest.mark.parametrize(
    "name", ["GeForce RTX 4090 Laptop GPU", "GH200 480GB", "A100-SXM4-80GB MIG 1g.10gb", "T400", ""]
)
def test_another_card_never_gets_these_figures(name):
    assert peak_of(f"NVIDIA {name}") is None


def test_data_sheets_agree_with_themselves():
    """A tensor core reads 16 bits twice as fast as TF32, and every name leads to one row."""
    for name, peak in PEAKS.items():
        assert peak.source
        for reported in peak.reported or (name,):
            assert peak_of(f"NVIDIA {reported}") is peak
        if peak.tf32:
            assert peak.half == pytest.approx(2 * peak.tf32, rel=0.025), name
        assert 70 < 1e3 * peak.half / peak.bandwidth < 450, f"{name}: a ridge of no GPU"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_events_agree_with_the_host_s_clock_and_see_the_work_of_each_call():
    cuda = torch.device("cuda")
    a = torch.randn(4096, 4096, device=cuda)
    by_events = measure(lambda: a @ a, cuda, repeats=20)
    torch.cuda.synchronize()
    start = instruments.time.perf_counter()
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    assert len(by_events.times) == 20
    assert sum(by_events.times) == pytest.approx(instruments.time.perf_counter() - start, rel=0.5)
    assert matmul_flops(cuda, "float32", 8192) < 1e15, "no GPU does a petaflop in float32"
