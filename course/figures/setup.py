"""Figures of chapter 00."""

import matplotlib.pyplot as plt

BOXES = {  # label: (x, y, colour)
    "02 corpus\n16 real text": (0, 1, "#d9ead3"),
    "01 tokenizer": (1.6, 1, "#d9ead3"),
    "03 data": (3.2, 1, "#d9ead3"),
    "04 attention\n05 GPT": (4.95, 1, "#cfe2f3"),
    "07 training": (6.6, 1.55, "#cfe2f3"),
    "08 sampling": (6.6, 0.45, "#cfe2f3"),
}
ARROWS = [  # from, to, what flows
    ("02 corpus\n16 real text", "01 tokenizer", "text"),
    ("01 tokenizer", "03 data", "ids"),
    ("03 data", "04 attention\n05 GPT", "batches"),
    ("04 attention\n05 GPT", "07 training", "loss"),
    ("04 attention\n05 GPT", "08 sampling", "scores"),
]
WIDTH, HEIGHT = 1.12, 0.62
PARTS = "06 weights from Hugging Face     09–14 speed     15–19 a real run     20–22 many processes"


def course_map():
    """The path of the course as boxes and arrows."""
    fig, ax = plt.subplots(figsize=(7, 2.2))
    for label, (x, y, colour) in BOXES.items():
        ax.add_patch(plt.Rectangle((x, y - HEIGHT / 2), WIDTH, HEIGHT, fc=colour, ec="gray"))
        ax.text(x + WIDTH / 2, y, label, ha="center", va="center", fontsize=8)
    style = {"arrowstyle": "->", "color": "gray"}
    for start, end, what in ARROWS:
        (x0, y0, _), (x1, y1, _) = BOXES[start], BOXES[end]
        ax.annotate("", (x1, y1), (x0 + WIDTH, y0), arrowprops=style)
        side = 0.12 if y1 >= y0 else -0.25
        ax.text((x0 + WIDTH + x1) / 2, (y0 + y1) / 2 + side, what, ha="center", fontsize=7, color="gray")
    ax.annotate("", (5.4, 1.31), (6.6, 1.8), arrowprops=style | {"connectionstyle": "arc3,rad=0.4"})
    ax.text(5.7, 1.95, "better weights", ha="center", fontsize=7, color="gray")
    ax.text(3.8, -0.15, PARTS, ha="center", fontsize=8)
    ax.set(xlim=(-0.1, 7.8), ylim=(-0.3, 2.2))
    ax.axis("off")
    return fig
