"""Chapter 05: what attention, the MLP, the additions and the place of the LayerNorm are worth, on chapter 02's stories.

    python bench/blocks.py [--steps 400] [--rates 1e-3 3e-3] [--seeds 2] [--out data/measurements/blocks.json]

Each kind of block is trained at every rate and with every seed; the loss is that of stories which no run has seen.
"""

import argparse
import json
import platform
from datetime import date
from pathlib import Path

import torch

from course.paths import ROOT
from nanogpt.labs.corpora.stories import stories
from nanogpt.model import GPT, Block, GPTConfig
from nanogpt.tokenizer import BPETokenizer

VOCAB, T, B, C, HEADS, HELD = 512, 64, 16, 64, 4, 12_000


class AttentionOnly(Block):
    def forward(self, x, cache=None):
        return x + self.attn(self.ln_1(x), cache)


class MLPOnly(Block):
    def forward(self, x, cache=None):
        return x + self.mlp(self.ln_2(x))


class Replaces(Block):
    def forward(self, x, cache=None):
        return self.mlp(self.ln_2(self.attn(self.ln_1(x), cache)))


class PostNorm(Block):
    def forward(self, x, cache=None):
        x = self.ln_1(x + self.attn(x, cache))
        return self.ln_2(x + self.mlp(x))


# Two blocks have 24·C² weights: as many as six layers of attention or three MLPs.
KINDS = {
    "attention and MLP, 2 blocks": (Block, 2),
    "attention alone, 2 layers": (AttentionOnly, 2),
    "attention alone, 6 layers": (AttentionOnly, 6),
    "MLP alone, 3 layers": (MLPOnly, 3),
    "each part replaces the stream, 2 blocks": (Replaces, 2),
    "post-norm, 2 blocks": (PostNorm, 2),
    "attention and MLP, 8 blocks": (Block, 8),
    "post-norm, 8 blocks": (PostNorm, 8),
}


def text() -> torch.Tensor:
    told = [story.text for story in stories(1500)]
    tokenizer = BPETokenizer.train(told[:400], VOCAB)
    return torch.tensor([i for story in told for i in [VOCAB - 1, *tokenizer.encode(story)]])


def counted(train: torch.Tensor, held: torch.Tensor) -> dict[str, float]:
    """Loss of counting how frequent each token is, and of counting which follows which."""
    counts = torch.full((VOCAB, VOCAB), 0.01)
    counts.index_put_((train[:-1], train[1:]), torch.ones(len(train) - 1), accumulate=True)
    unigram = counts.sum(0) / counts.sum()
    bigram = counts / counts.sum(1, keepdim=True)
    losses = -unigram.log()[held[1:]].mean(), -bigram.log()[held[:-1], held[1:]].mean()
    return dict(zip(("unigram", "bigram"), (round(loss.item(), 3) for loss in losses)))


@torch.no_grad()
def cosines(kind, held: torch.Tensor) -> list[float]:
    """After each of six blocks of an untrained model: the cosine of two positions' vectors, mean over all pairs."""
    model = GPT(GPTConfig(T, VOCAB, 6, HEADS, C), torch.Generator().manual_seed(0)).transformer
    x, means = model.wte(held[: B * T].view(B, T)) + model.wpe.weight, []
    for block in model.h:
        block.__class__ = kind
        x = block(x)
        unit = torch.nn.functional.normalize(x, dim=-1)
        means.append((((unit @ unit.mT).sum((1, 2)) - T) / (T * (T - 1))).mean().item())
    return [round(mean, 3) for mean in means]


def loss_of(kind, layers: int, rate: float, seed: int, steps: int, train, held) -> float:
    model = GPT(GPTConfig(T, VOCAB, layers, HEADS, C), torch.Generator().manual_seed(seed))
    for block in model.transformer.h:
        block.__class__ = kind
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    g = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        starts = torch.randint(len(train) - T, (B,), generator=g)
        rows = torch.stack([train[i : i + T + 1] for i in starts])
        optimizer.zero_grad()
        model(rows[:, :-1], rows[:, 1:])[1].backward()
        optimizer.step()
    n = (len(held) - 1) // T * T
    with torch.no_grad():
        return model(held[:n].view(-1, T), held[1 : n + 1].view(-1, T))[1].item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measurements" / "blocks.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ids = text()
    train, held = ids[:-HELD], ids[-HELD:]
    runs = []
    for name, (kind, layers) in KINDS.items():
        for rate in args.rates:
            for seed in range(args.seeds):
                loss = loss_of(kind, layers, rate, seed, args.steps, train, held)
                runs.append({"blocks": name, "lr": rate, "seed": seed, "loss": round(loss, 3)})
                print(runs[-1], flush=True)
    record = {
        "command": "python bench/blocks.py",
        "date": date.today().isoformat(),
        "device": f"1 thread, {platform.machine()}",
        "torch": torch.__version__,
        "shape": {"T": T, "B": B, "n_embd": C, "n_head": HEADS, "vocab_size": VOCAB},
        "steps": args.steps,
        "counting": counted(train, held),
        "cosines": {
            "each part adds (GPT-2)": cosines(Block, held),
            "each part replaces": cosines(Replaces, held),
        },
        "runs": runs,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
