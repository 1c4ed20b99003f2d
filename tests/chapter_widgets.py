"""Every chapter's widget, made as the chapter makes it, with small stand-ins for what only its notebook has."""

from functools import partial

import torch

from course.figures import (
    attention,
    ddp,
    flash_attention,
    hellaswag,
    pipeline,
    planner,
    precision,
    real_text,
    recipe,
    sampling,
    sharding,
    tokenizer,
)
from nanogpt.labs.corpora.cuts import safe_cut
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.drills.formats import FORMATS
from nanogpt.labs.parallel.pipeline import interleaved, simulate
from nanogpt.labs.parallel.zero import BYTES, state_bytes
from nanogpt.labs.plan.budget import Cluster, step_seconds
from nanogpt.labs.plan.footprint import Step, footprint
from nanogpt.labs.plan.table import MEMORY
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.model import GPT, GPTConfig, attention_weights
from nanogpt.optim import cosine, wsd
from nanogpt.sampling import token_probs
from nanogpt.tokenizer import BPETokenizer

STORIES = [story.text for story in stories(60, seed=0)]
BPE = BPETokenizer.train(STORIES, 512)
ALPHABET = "abcdefghijklmnopqrstuvwxyz ."  # of chapter 04
LONGEST = 48  # the characters that its model reads
COUNTS = [2**k for k in range(11)]


def maps_of(text: str):
    """Chapter 04's: the maps of two layers of four heads on the characters of a text."""
    characters = [c for c in text if c in ALPHABET][:LONGEST]
    g = torch.Generator().manual_seed(len(characters))
    q, k = torch.randn(2, 1, 4, max(1, len(characters)), 16, generator=g)
    return [attention_weights(q, k)] * 2


def sampler():
    model = GPT(GPTConfig(block_size=128, vocab_size=BPE.vocab_size, n_layer=4, n_head=4, n_embd=128)).eval()
    return sampling.playground_widget(model, BPE, token_probs, STORIES[0][:300])


def rates(steps: int, warmup: int, minimum: float, decay: float) -> dict[str, list[float]]:
    both = {"cosine": cosine, "warm-up–stable–decay": partial(wsd, decay=decay)}
    options = {"warmup": warmup, "minimum": minimum}
    return {name: [rate(i, steps, **options) for i in range(steps)] for name, rate in both.items()}


def questions():
    ending = "goes to the garden, finds the seven red marbles that Tom has lost and gives them back"
    items = [{"ctx": 25 * "word ", "endings": [f"{k} {ending}" for k in range(4)], "label": 1}] * 9
    costs = {name: [4.0, 3.0, 2.5, 3.5] for name in hellaswag.UNITS}
    return hellaswag.endings_widget(items, lambda question: costs, 8)


def curves(**knobs):
    cluster = Cluster(flops=PEAKS["H100"].half * 1e12, **knobs)

    def seconds(rows: float, gpus: int) -> float:
        return step_seconds(GPTConfig(), rows, gpus, cluster)["total"]

    weak = [(n, seconds(16, 1) / seconds(16, n)) for n in COUNTS]
    strong = [(n, seconds(512, 1) / n / seconds(512 / n, n)) for n in COUNTS if n <= 512]
    return {"weak: 16 rows a GPU": weak, "strong: 512 rows in all": strong}


def stages_of(millions: float, recipe: str):
    name = f"{millions:,.0f} million parameters, {sum(BYTES[recipe])} bytes each"
    parameters = int(millions * 1e6)
    return {name: [[state_bytes(parameters, n, k, recipe) for k in range(4)] for n in (1, 4, 16, 64, 256)]}


WIDGETS = {
    "01": lambda: tokenizer.merging_widget("Rosa gave three unicorns to Leo.", BPE),
    "04": lambda: attention.map_widget("the cat sat. the cat sat", ALPHABET, maps_of),
    "08": sampler,
    "10": lambda: precision.bits_widget("65520", FORMATS),
    "12": lambda: flash_attention.block_widget(torch.arange(12.0).remainder(5)),
    "15": lambda: recipe.schedule_widget(rates),
    "16a": lambda: real_text.cutting_widget("She won 1234 coins.\n\n  Then it's over.", BPE.encode, safe_cut),
    "18b": questions,
    "20b": lambda: ddp.scaling_widget(curves),
    "21": lambda: sharding.stages_widget(stages_of, [1, 4, 16, 64, 256]),
    "21e": lambda: pipeline.schedule_widget(interleaved, simulate),
    "22": lambda: planner.memory_widget(lambda **knobs: footprint(Step(GPTConfig(), **knobs)), MEMORY),
}
