"""Figures of chapter 13: tiles, waves, a width sweep, padded rows, each from data; and the names of a call's kernels."""

import os

import matplotlib.pyplot as plt
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from nanogpt.device import synchronize


def tiles(sizes, tile):
    """n × n matrices cut into square tiles; orange where a tile is partly empty."""
    fig, axes = plt.subplots(1, len(sizes), figsize=(7, 2.4))
    for ax, n in zip(axes, sizes):
        count = -(-n // tile)
        for i in range(count):
            for j in range(count):
                full = (max(i, j) + 1) * tile <= n
                color = "C0" if full else "C1"
                ax.add_patch(plt.Rectangle((j * tile, i * tile), tile, tile, fc=color, ec="white"))
        ax.add_patch(plt.Rectangle((0, 0), n, n, fill=False, ec="black", lw=2))
        edge = tile * (-(-max(sizes) // tile) + 0.1)
        ax.set(xlim=(-5, edge), ylim=(edge, -5), aspect="equal", title=f"{n} × {n}: {count * count} tiles")
        ax.axis("off")
    return fig


def waves(counts, formula, sms, measured=None):
    """Share of SM slots used against the number of tiles, by formula, and tiles a second if measured."""
    fig, ax = plt.subplots(figsize=(6.5, 2.6))
    if measured:
        best = max(measured)
        ax.plot(counts, [m / best for m in measured], ".-", label="measured, share of the best")
    ax.plot(counts, formula, "--" if measured else "-", label="formula", color="C1" if measured else "C0")
    ax.set(xlabel="tiles of 128 × 128", ylabel="share", title=f"wave quantisation, {sms} SMs", ylim=(0, 1.1))
    if measured:
        ax.legend()
    return fig


def sweep(rates, dtype, step):
    """GFLOP/s by width; grey lines at multiples of `step`, full ones at even multiples."""
    widths = list(rates)
    fig, ax = plt.subplots(figsize=(6.5, 2.8))
    ax.plot(widths, list(rates.values()), ".-")
    for n in range(-(-widths[0] // step) * step, widths[-1] + 1, step):
        ax.axvline(n, c="gray", lw=0.5, ls=":" if n % (2 * step) else "-")
    ax.set(xlabel="columns", ylabel=f"GFLOP/s, {dtype}", title="a width sweep, measured here")
    ax.set_ylim(bottom=0)
    return fig


def padding(real, extra):
    """Losses over real ids by name, and beside them what the added rows add, on a log axis."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
    for (name, curve), style in zip(real.items(), ("-", "--")):
        axes[0].plot(curve, style, label=name)
    axes[0].set(xlabel="step", ylabel="loss over real ids (nats)")
    axes[0].legend()
    axes[1].semilogy(extra)
    axes[1].set(xlabel="step", ylabel="mean of −ln(1 − P) (nats)")
    fig.tight_layout()
    return fig


def kernel_names(call, device) -> list[str]:
    """Names of the kernels that a call runs on a CUDA device, in order; elsewhere of PyTorch's operators for products."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    cuda = device.type == "cuda"
    call()  # the first call of a product may do more
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        call()
        synchronize(device)
    if cuda:
        kernels = [event for event in found.events() if event.device_type == DeviceType.CUDA]
        return [event.name for event in kernels if not event.name.startswith("Mem")]  # copies and fills
    return [event.name for event in found.events() if "mm" in event.name]
