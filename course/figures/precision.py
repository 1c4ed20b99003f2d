"""The figures of chapters 10 and 10b."""

import math

import matplotlib.pyplot as plt
import torch

from course.figures import widgets

COLOURS = {"float32": "C7", "tf32": "C2", "bfloat16": "C0", "float16": "C3"}


def in_memory(x: float) -> dict[str, tuple[str, float]]:
    """Format -> the bits of x as they lie in memory (of a TF32: those that are read), and the number they stand for."""
    x = torch.tensor(x, dtype=torch.float64).float()
    tf32 = x
    if x.isfinite():  # the nearest number whose last 13 bits are zero, ties to even
        bits = x.view(torch.int32)
        tf32 = ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    rounded = {"float32": x, "tf32": tf32, "bfloat16": x.bfloat16(), "float16": x.half()}
    found = {}
    for name, value in rounded.items():
        width = 8 * value.element_size()
        pattern = value.view(torch.int32 if width == 32 else torch.int16).item() & (2**width - 1)
        found[name] = f"{pattern:0{width}b}"[: 19 if name == "tf32" else width], value.item()
    return found


def bits(x: float, formats: dict):
    """The bits of x in each format, and the number that is stored; and that in words."""
    ax, stored = widgets.axes(1.7, left=0.05, right=0.05, top=0.05, bottom=0.05), in_memory(x)
    for y, (name, (text, value)) in enumerate(stored.items()):
        ends = 1 + formats[name].exponent  # where the mantissa begins
        for start, part, colour in [(0, text[0], "C7"), (1, text[1:ends], "C1"), (9, text[ends:], "C0")]:
            places, faces = (
                range(start, start + len(part)),
                [colour if bit == "1" else "white" for bit in part],
            )
            ax.bar(places, 0.75, 0.7, bottom=-y, align="edge", color=faces, ec=colour, lw=0.7)
        error = f"  ({(value - x) / x:+.1e})" if x and math.isfinite(value) else ""
        ax.text(32.4, 0.35 - y, f"{value:.8g}{error}", va="center", fontsize=9)
        ax.text(-0.5, 0.35 - y, name, ha="right", va="center", fontsize=9)
    ax.set(xlim=(-7, 47), ylim=(0.8 - len(formats), 1.5))
    ax.axis("off")
    ax.text(-0.5, 1, f"{x:g}", fontsize=9, ha="right")
    for at, text in [(2, "exponent"), (15, "mantissa"), (33, "stored (relative error)")]:
        ax.text(at, 1, text, fontsize=9)
    return ax, f"{x:g} is stored as " + ", ".join(
        f"{value:.8g} in {name}" for name, (_, value) in stored.items()
    ) + "."


def bits_widget(number: str, formats: dict):
    """A field for a number above its bits."""

    def draw(number: str):
        try:
            x = float(number)
        except ValueError:
            raise ValueError(f"{number!r} is not a number; try 0.1 or 1e-7") from None
        return bits(x, formats)

    return widgets.explorer(draw, number=number)


def rounding(x, errors: dict):
    """Largest relative error of rounding by format, over numbers of every size."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    for name, error in errors.items():
        style = "--" if name == "float16" else "-"
        ax.loglog(x, error, style, c=COLOURS[name], base=2, label=name)
    ax.set(xlabel="size of the number", ylabel="largest relative error of rounding", ylim=(2**-26, 4))
    ax.legend(loc="center left", bbox_to_anchor=(0, 0.28), fontsize=9, ncol=2)
    return fig


def products(lengths: list[int], errors: dict, predicted: list[float]):
    """errors: (format, sums rounded or not) -> RMS error by number of terms."""
    fig, ax = plt.subplots(figsize=(5, 3.2))
    for (name, sums), errs in errors.items():
        label = f"{name}, {'sums rounded too' if sums else 'inputs rounded'}"
        style = "o--" if name == "float16" else "o-"  # it lies on TF32, which shows between its dashes
        ax.loglog(lengths, errs, style, c="C1" if sums else COLOURS[name], label=label, base=2)
    ax.loglog(lengths, predicted, "k:", label="predicted for bfloat16: √K · 0.60 · eps/2")
    ax.set(xlabel="terms K", ylabel="RMS error against float64")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def gradients(sizes: torch.Tensor, shifts: dict[str, int], smallest: float, tiny: float):
    """Histogram of log2 of gradients, shifted by a loss scale, over float16's range."""
    fig, ax = plt.subplots(figsize=(6.5, 3))
    bins = torch.arange(-45, 25)
    for label, shift in shifts.items():
        ax.hist(sizes.log2() + shift, bins, histtype="step", lw=1.5, label=label, density=True)
    zero, normal = math.log2(smallest) - 1, math.log2(tiny)
    for low, high, colour in [(-45, zero, "C3"), (zero, normal, "C1"), (16, 25, "C3")]:
        ax.axvspan(low, high, color=colour, alpha=0.14)
    for where, text in [(-44, "zero"), (-24.5, "subnormal"), (18, "infinity")]:
        ax.text(where, ax.get_ylim()[1] * 0.93, text, fontsize=9)
    ax.set(xlabel="log2 of the gradient's size", ylabel="share per power of two", xlim=(-45, 25))
    ax.legend(loc="upper right", bbox_to_anchor=(0.88, 0.9), fontsize=9)
    return fig


def scales(exponents: list[float], finite: list[bool], predicted: int):
    """The loss scale over the iterations, skipped ones crossed."""
    fig, ax = plt.subplots(figsize=(6.5, 2.4))
    steps = range(1, len(exponents) + 1)
    ax.step(steps, exponents, where="mid", c="C0")
    bad = [i for i, good in zip(steps, finite) if not good]
    ax.plot(bad, [exponents[i - 1] for i in bad], "x", c="C3", label="skipped")
    ax.axhline(predicted, ls=":", c="gray", label="predicted")
    ax.set(
        xlabel="iteration", ylabel="log2 of the loss scale", title="Search, then probe every 12 good steps"
    )
    ax.legend()
    return fig


def runs(curves: dict[str, list[float]], floor: float, width: int = 10):
    """Loss of each run, and below it its difference from the first; means of `width` steps."""
    width = min(width, *map(len, curves.values()))
    smooth = {name: torch.tensor(curve).unfold(0, width, 1).mean(1) for name, curve in curves.items()}
    first = next(iter(smooth))
    fig, (top, below) = plt.subplots(2, 1, figsize=(6.5, 4.8), sharex=True, height_ratios=(3, 2))
    for (name, curve), colour in zip(smooth.items(), ("C7", "C2", "C0", "C1", "C3", "C4")):
        steps = range(width, width + len(curve))
        top.plot(steps, curve, c=colour, lw=1.5, label=name)
        if name != first:
            below.plot(steps, curve - smooth[first], c=colour, lw=3 if name == "TF32" else 1.2)
    top.axhline(floor, ls=":", c="gray")
    top.text(width, floor, "floor of the corpus", va="bottom", color="gray", fontsize=9)
    top.set(ylabel=f"loss (nats), mean of {width} steps", ylim=(0, None))
    below.axhline(0, c="gray", lw=0.8)
    below.set(xlabel="step", ylabel=f"above {first}", ylim=(-0.02, 0.02))  # what goes wrong leaves the frame
    top.legend(fontsize=8, loc="upper right", ncol=2)
    return fig


def stuck(steps: list[int], shares: dict[str, list[float]]):
    """Share of weights that the update of each step does not move, by format."""
    fig, ax = plt.subplots(figsize=(6, 2.7))
    for name, share in shares.items():
        ax.semilogx(steps, share, "o-", c=COLOURS[name], label=name)
    ax.set(xlabel="step", ylabel="share of weights\nthat do not move")
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.minorticks_off()
    ax.set_ylim(-0.03, None)
    ax.legend()
    return fig
