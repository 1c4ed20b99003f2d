"""Figures of chapters 16 and 16a."""

import html

import matplotlib.pyplot as plt

from course.figures import widgets

LONGEST = 120  # characters that the widget reads: each place is tried


def files(damaged: dict[str, list[str]], count: int):
    """A square for each of `count` files, train_000000.bin and so on; in each row the damaged ones are red."""
    fig, ax = plt.subplots(figsize=(7, 1.5))
    for row, names in enumerate(damaged.values()):
        numbers = [int(name[6:12]) for name in names]
        colours = ["C3" if n in numbers else "C2" for n in range(count)]
        ax.scatter(range(count), [row] * count, c=colours, marker="s", s=20)
    ax.set_yticks(range(len(damaged)), list(damaged))
    ax.set(xlabel="file", ylim=(len(damaged) - 0.5, -0.5))
    ax.grid(False)
    return fig


def places(share, kinds: list[str], framed):
    """What a cut changes: share[row][column] of texts, by the character before it and the one after.

    framed: the (row, column) that get a frame, since a proof says that they are safe.
    """
    fig, ax = plt.subplots(figsize=(5.8, 4.2))
    picture = ax.imshow(share, cmap="Reds", vmin=0, vmax=1)
    for row, values in enumerate(share):
        for column, value in enumerate(values):
            ax.text(column, row, f"{value:.0%}", ha="center", va="center", color="w" if value > 0.6 else "k")
    for row, column in framed:
        frame = plt.Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec="C2", lw=2)
        ax.add_patch(frame)
    ax.set(xlabel="character after the cut", ylabel="character before the cut")
    ax.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds])
    ax.set_yticks(range(len(kinds)), kinds)
    ax.grid(False)
    fig.colorbar(picture, ax=ax, label="share of texts that the cut changes", shrink=0.85)
    return fig


def cutting_widget(text: str, encode, first_cut):
    """A field for a text: a bar at the places that first_cut(bytes, at) takes, a red dot where a cut changes the ids."""

    def draw(text: str) -> str:
        if len(text) < 2:
            raise ValueError(f"a text of {len(text)} characters has no place to cut: type more")
        cut, text = len(text) > LONGEST, text[:LONGEST]
        raw, whole, taken, changed, at, shown = text.encode(), encode(text), set(), 0, 0, []
        while at := first_cut(raw, at + 1):
            taken.add(len(raw[:at].decode()))
        for i, character in enumerate(text):
            if i and encode(text[:i]) + encode(text[i:]) != whole:
                changed += 1
                shown.append("<span style='color:#d62728'>·</span>")
            shown.append("<b style='color:#2ca02c'>|</b>" * (i in taken) + html.escape(character))
        said = (
            f"{len(text) - 1} places: {len(taken)} are taken (|), at {changed} a cut would change the ids (·)"
        )
        said += f"; only the first {LONGEST} characters are read" * cut
        return f"<pre style='white-space:pre-wrap'>{''.join(shown)}</pre><p>{said}</p>"

    return widgets.explorer(draw, text=text)
