"""What chapters 07 to 08 need around their experiments: a model with a fault, one where 07 was skipped, and times."""

import time
from collections.abc import Callable

from course.paths import BUILT


def trained_model(tokenizer, manifest: dict, device):
    """Chapter 07's model; where that is missing, a smaller one after 200 steps, and a line that says so."""
    from nanogpt.weights import load_model

    if (BUILT / "model" / "config.json").exists():
        return load_model(BUILT / "model", device)
    return small_model(tokenizer, manifest, device)


def small_model(tokenizer, manifest: dict, device):
    """A small model after 200 steps, and a line that says so."""
    from nanogpt.data import DocumentStream
    from nanogpt.device import seed_everything
    from nanogpt.model import GPT, GPTConfig
    from nanogpt.training import scale_init, train

    print("data/built/model is missing, chapter 07 makes it; here is a small model, trained for 200 steps")
    shards = [BUILT / "stories" / shard["file"] for shard in manifest["splits"]["train"]["shards"]]
    config = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, n_embd=64)
    model = scale_init(GPT(config, generator=seed_everything(0))).to(device)
    train(model, DocumentStream(shards, B=8, T=128, device=device), steps=200, lr=5e-3, decay=0.3)
    return model.eval()


def without_mask(model):
    """The same model, in which each position attends to the complete row, also to what comes after it."""
    import torch.nn.functional as F

    from nanogpt.model import split_heads

    def everywhere(attention, x):
        q, k, v = split_heads(attention.c_attn(x), attention.n_head)
        return attention.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    for block in model.transformer.h:
        block.attn.forward = lambda x, cache=None, attention=block.attn: everywhere(attention, x)
    return model


def fastest(calls: dict[object, Callable], rounds: int = 8) -> dict:
    """Milliseconds of each call, which gives a tensor: the least of all rounds, in which the calls take turns."""
    import torch

    times = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call().sum().item()  # waits until a GPU has finished
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(taken) for name, taken in times.items()}
