"""Figures of chapter 00."""

import matplotlib.pyplot as plt

GREEN, BLUE, GREY = "#d9ead3", "#cfe2f3", "#eeeeee"
BOXES = {  # label: (left edge, middle, colour)
    "02 corpus\n16 real text": (0, 2, GREEN),
    "01 tokenizer": (1.85, 2, GREEN),
    "03 data": (3.7, 2, GREEN),
    "04 attention\n05 GPT": (5.55, 2, BLUE),
    "07 training": (7.6, 2.6, BLUE),
    "08 sampling": (7.6, 1.4, BLUE),
    "06 GPT-2's\nweights": (0, 0.45, GREY),
    "09–14\nspeed": (1.85, 0.45, GREY),
    "15–19\na real run": (3.7, 0.45, GREY),
    "20–21 many\nprocesses": (5.55, 0.45, GREY),
    "22\nplanning": (7.6, 0.45, GREY),
}
ARROWS = [  # from, to, what flows, where the word stands above the arrow
    ("02 corpus\n16 real text", "01 tokenizer", "text", 0.1),
    ("01 tokenizer", "03 data", "ids", 0.1),
    ("03 data", "04 attention\n05 GPT", "batches", 0.1),
    ("04 attention\n05 GPT", "07 training", "loss", 0.08),
    ("04 attention\n05 GPT", "08 sampling", "scores", -0.26),
]
WIDTH, HEIGHT = 1.15, 0.72
MAP = (
    "The path of the course: text becomes ids (01), ids become batches (03), a model (04 and 05) gives scores for every "
    "next token; their loss trains it (07), and a draw from the scores continues the text (08). Below the path are GPT-2's "
    "published weights (06), speed (09 to 14), a real run (15 to 19), many processes (20 and 21) and planning (22)."
)


def course_map(colours: dict | None = None):
    """The path of the course as boxes and arrows. colours: others for GREEN, BLUE and GREY (README, on a dark page)."""
    fig, ax = plt.subplots(figsize=(7.4, 2.9), label=MAP)
    for label, (x, y, colour) in BOXES.items():
        colour = (colours or {}).get(colour, colour)
        ax.add_patch(plt.Rectangle((x, y - HEIGHT / 2), WIDTH, HEIGHT, fc=colour, ec="gray"))
        ax.text(x + WIDTH / 2, y, label, ha="center", va="center", fontsize=8)
    style = {"arrowstyle": "->", "color": "gray"}
    for start, end, what, above in ARROWS:
        (x0, y0, _), (x1, y1, _) = BOXES[start], BOXES[end]
        ax.annotate("", (x1, y1), (x0 + WIDTH, y0), arrowprops=style)
        ha = "center" if y0 == y1 else "right"
        ax.text((x0 + WIDTH + x1) / 2, (y0 + y1) / 2 + above, what, ha=ha, fontsize=7)
    back = style | {"connectionstyle": "arc3,rad=0.35"}
    ax.annotate("", (6.1, 2 + HEIGHT / 2), (7.6, 2.8), arrowprops=back)
    ax.text(6.3, 2.95, "better weights", ha="center", fontsize=7)
    ax.set(xlim=(-0.1, 8.85), ylim=(-0.05, 3.2))
    ax.axis("off")
    return fig


def first_run(losses, floor):
    """The training loss at each step, and the floor as a dashed line."""
    says = f"The training loss falls from {losses[0]:.0f} nats a token quickly, then slowly towards a dashed line, the floor."
    fig, ax = plt.subplots(figsize=(6.5, 3.2), label=says)
    ax.plot(range(1, len(losses) + 1), losses, lw=1, label="the model's loss while it trains")
    ax.axhline(floor, color="C3", ls="--", label="the floor: no model can do better on average")
    ax.set(xlabel="training step", ylabel="loss (nats a token)", ylim=(0, None))
    ax.legend()
    return fig


def ladders(records):
    """Milliseconds of one training step of GPT-2 124M after each change of part III; records: title -> as recorded."""
    says = []
    fig, axes = plt.subplots(1, len(records), figsize=(7.4, 2.6))
    for ax, (title, recorded) in zip(axes, records.items()):
        names = [rung["name"] for rung in recorded["rungs"]]
        ms = [rung["ms"] for rung in recorded["rungs"]]
        ax.barh(names, ms, color=BLUE, ec="gray")
        for row, value in enumerate(ms):
            ax.text(value + 0.015 * max(ms), row, f"{value:,.0f}", va="center", fontsize=8)
        ax.set(title=title, xlabel="milliseconds a step", xlim=(0, 1.15 * max(ms)))
        ax.tick_params(labelsize=8)
        ax.title.set_fontsize(9)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        says.append(f"{title}: from {ms[0]:,.0f} ms in float32 to {ms[-1]:,.0f} at the end")
    fig.tight_layout()
    fig.set_label(f"Bars of the time of one training step after each change. {'; '.join(says)}.")
    return fig
