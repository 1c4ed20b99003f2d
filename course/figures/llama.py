"""Chapter 24's figures: each function takes data, and returns a figure or prints."""

import matplotlib.pyplot as plt


def worth(rows: list[dict]) -> plt.Figure:
    """The difference of each change from GPT-2, with its interval."""
    rows = [row for row in rows if row["name"] != "GPT-2"][::-1]
    fig, ax = plt.subplots(figsize=(7, 2.8), layout="tight")
    for at, row in enumerate(rows):
        low, high = row["interval"]
        color = "0.6" if low <= 0 <= high else "C0" if high < 0 else "C3"
        ax.plot([low, high], [at, at], color=color, lw=2)
        ax.plot(row["difference"], at, "o", color=color)
    ax.axvline(0, color="0.3", lw=1)
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows])
    ax.set_xlabel("loss minus GPT-2's (nats a token); left is better")
    return fig


def say_worth(rows: list[dict]) -> None:
    """Print each change's loss, and its difference from GPT-2 with an interval; a star where that excludes zero."""
    for row in rows:
        line = f"{row['name']:22} {row['parameters']:9,} parameters, loss {row['loss']:.3f}"
        if row["name"] != "GPT-2":
            low, high = row["interval"]
            line += f", {row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
            if low > 0 or high < 0:
                line += "  *"
        print(line)


def say_times(models: dict, device) -> None:
    """Print how long a training step takes beside the first model's, in turns."""
    import torch

    from nanogpt.labs.roofline.clock import faster
    from nanogpt.optim import make_optimizer
    from nanogpt.training import train_step

    first = next(iter(models.values())).config
    x = torch.randint(first.vocab_size, (4, first.block_size), device=device)

    def step(model):
        optimizer = make_optimizer(model, 1e-3)
        return lambda: train_step(model, optimizer, [(x, x)])

    steps = {name: step(model) for name, model in models.items()}
    before = next(iter(steps.values()))
    for name, after in list(steps.items())[1:]:
        gain = faster(before, after, device, pairs=6, warmup=2)
        says = f"{gain.ratio:.2f} times as fast as GPT-2's" if gain.sure else "no difference was measured"
        print(f"{name:18} {says}")
