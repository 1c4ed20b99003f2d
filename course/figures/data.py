"""The drawings of chapter 03."""

import matplotlib.pyplot as plt


def shard_bytes(path, tokenizer) -> plt.Figure:
    """A shard's first bytes in hexadecimal, as boxes with their names; a field without bytes is a gap."""
    raw = path.read_bytes()
    fields = [
        ("magic", raw[:4]),
        ("version", raw[4:8]),
        ("tokens", raw[8:12]),
        ("zeros", raw[12:16]),
        ("", b""),
    ]
    for at in range(1024, 1036, 2):
        fields.append((tokenizer.decode([int.from_bytes(raw[at : at + 2], "little")]), raw[at : at + 2]))
    fig, ax = plt.subplots(figsize=(7, 1.2))
    x = 0.0
    for n, (label, content) in enumerate(fields):
        width = 1.4 * len(content) or 1.4
        color = ["#cfe2f3", "#d9ead3"][n % 2] if content else "white"
        ax.add_patch(plt.Rectangle((x, 0), width, 1, facecolor=color))
        middle = {"ha": "center", "va": "center"}
        ax.text(x + width / 2, 0.5, content.hex(" ") or "…", family="monospace", fontsize=7, **middle)
        ax.text(x + width / 2, -0.4 - 0.4 * (n % 2), label.replace(" ", "·"), fontsize=8, **middle)
        x += width
    ax.set(xlim=(0, x), ylim=(-1, 1))
    ax.axis("off")
    return fig
