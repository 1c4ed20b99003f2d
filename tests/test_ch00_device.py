import pytest
import torch

from nanogpt.device import (
    Roofline,
    autocast_dtype,
    copy_bandwidth,
    matmul_flops,
    peak_of,
    pick_device,
    pick_scale,
    seed_everything,
    timings,
)

CPU = torch.device("cpu")


def test_the_device_can_be_chosen_and_a_missing_one_is_named(monkeypatch):
    monkeypatch.setenv("NANOGPT_DEVICE", "cpu")
    assert pick_device() == CPU
    monkeypatch.setenv("NANOGPT_DEVICE", "tpu")
    assert pick_device("cpu") == CPU, "an argument wins over the variable"
    with pytest.raises(ValueError, match=r"'tpu' is not available; this machine has .*cpu"):
        pick_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA is meant")
def test_cuda_where_there_is_none_is_one_clear_error():
    with pytest.raises(ValueError, match="cuda:1"):
        pick_device("cuda:1")


def test_scale_follows_the_device_unless_told(monkeypatch):
    monkeypatch.delenv("NANOGPT_SCALE", raising=False)
    assert pick_scale(CPU) == "laptop"
    assert pick_scale(torch.device("cuda")) == "gpu"
    monkeypatch.setenv("NANOGPT_SCALE", "ci")
    assert pick_scale(CPU) == "ci"
    monkeypatch.setenv("NANOGPT_SCALE", "huge")
    with pytest.raises(ValueError, match="'huge'"):
        pick_scale(CPU)


def test_a_generator_of_ones_own_cannot_be_disturbed():
    generator = seed_everything(7)
    undisturbed = torch.randn(5, generator=torch.Generator().manual_seed(7))
    torch.randn(100)
    assert torch.equal(torch.randn(5, generator=generator), undisturbed)
    seed_everything(7)
    assert torch.equal(torch.randn(5), undisturbed), "the global generator is seeded as well"


def test_autocast_runs_in_the_chosen_dtype():
    with torch.autocast(CPU.type, dtype=autocast_dtype(CPU)):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == autocast_dtype(CPU) == torch.bfloat16


def test_timings_measure_the_call_and_not_its_warm_up():
    calls = []
    times = timings(lambda: calls.append(1), CPU, budget=0)
    assert len(times) == 5 and len(calls) == 6 and min(times) >= 0


def test_measured_rates_are_rates():
    """Twice the work in the same time is twice the rate: the count of operations must be in it."""
    assert matmul_flops(CPU, torch.float32, 256) > 1e8
    assert copy_bandwidth(CPU, 8) > 1e8


def test_the_roofline_is_the_lower_of_two_limits():
    roofline = Roofline("x", {"float32": 100.0, "bfloat16": 400.0}, bandwidth=10.0)
    assert roofline.ridge() == 10 and roofline.ridge("bfloat16") == 40
    assert roofline.attainable(5) == 50 and roofline.attainable(20) == 100
    for flops, nbytes in [(1000, 1), (1, 1000), (1000, 100)]:
        assert roofline.seconds(flops, nbytes) == pytest.approx(flops / roofline.attainable(flops / nbytes))


@pytest.mark.parametrize(
    "name, half, bandwidth",
    [
        ("NVIDIA H200", 989.4, 4800),
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100-PCIE-40GB", 312, 1555),
        ("NVIDIA A10", 125, 600),
        ("NVIDIA L40S", 362, 864),
        ("NVIDIA L4", 121, 300),
        ("Tesla V100-SXM2-16GB", 125, 900),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008),
    ],
)
def test_peaks_are_found_by_the_name_the_driver_gives(name, half, bandwidth):
    peak = peak_of(name)
    assert (peak.half, peak.bandwidth) == (half, bandwidth)


def test_an_unknown_gpu_has_no_peak():
    assert peak_of("NVIDIA GeForce GTX 1080") is None
    assert peak_of("NVIDIA A10G") is None, "an A10G is not an A10"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_synchronised_timing_sees_the_work_on_a_gpu():
    cuda = torch.device("cuda")
    a = torch.randn(8192, 8192, device=cuda)
    assert min(timings(lambda: a @ a, cuda, budget=0)) > 2 * 8192**3 / 1e15, (
        "no GPU does a petaflop in float32"
    )
