"""Text from a model: temperature, top-k and top-p, for one text or many at once, and the command `sample`.

Exported from notebooks/08_sampling.ipynb, grown by notebooks/13_nice_numbers.ipynb,
notebooks/17d_assembly.ipynb and notebooks/19_fine_tuning.ipynb.
"""

import codecs
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.checkpoint import pick_checkpoint
from nanogpt.device import pick_device
from nanogpt.evaluate import evaluating
from nanogpt.model import GPT
from nanogpt.pretrained import is_ours, load_pretrained
from nanogpt.tokenizer import EOT, BPETokenizer
from nanogpt.weights import load_model


def draw(probs: Tensor, generator: torch.Generator) -> list[int]:
    """One id for each row of probs (B, V); takes B numbers from `generator` and none from anywhere else."""
    # float64: 50,257 float32 sums would leave a rounding error larger than the rarest tokens.
    ends = probs.to("cpu", torch.float64).cumsum(-1)  # on the CPU, a seed means the same on every device
    u = torch.rand(len(ends), 1, generator=generator, device=generator.device).cpu()  # (B, 1)
    return torch.searchsorted(ends, u * ends[:, -1:], right=True).squeeze(1).tolist()


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Logits (B, V) with -inf for all but the k largest of each row. Equal ones are all kept, or none."""
    smallest = logits.topk(min(k, logits.size(-1))).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < smallest, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Logits (B, V) with -inf for all but the fewest largest that have the mass p. Equal ones are all kept, or none."""
    ranked = logits.sort(descending=True).values
    probs = ranked.softmax(-1)
    outside = probs.cumsum(-1) - probs >= p  # the larger ones before it have the mass already
    outside[:, 0] = False
    smallest = ranked.masked_fill(outside, math.inf).amin(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(logits < smallest, -math.inf)


def token_probs(logits: Tensor, temperature=1.0, top_k: int | None = None, top_p=1.0) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature (0 is greedy), then top-k, then top-p."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # at most 0: no quotient is infinite
    if top_k:
        logits = keep_top_k(logits, top_k)
    if top_p < 1:
        logits = keep_top_p(logits, top_p)
    return logits.softmax(-1)


class KVCache:
    """Keys and values of B texts, each (n_layer, B, n_head, size, d); `lengths`: how many tokens of each are stored."""

    def __init__(self, model: GPT, B: int, size: int):
        weight, blocks = model.transformer.wte.weight, model.transformer.h
        attn = blocks[0].attn
        # zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN
        self.keys = weight.new_zeros(len(blocks), B, attn.n_head, size, attn.head_size)
        self.values = self.keys.clone()
        self.lengths = [0] * B

    def positions(self, T: int) -> Tensor:
        """The positions of T new tokens of each text, (B, T); a token sees all places up to its own."""
        steps = torch.arange(max(self.lengths) + T, device=self.keys.device)  # (S,)
        self.at = torch.tensor(self.lengths, device=steps.device)[:, None] + steps[:T]  # (B, T)
        self.visible = steps <= self.at[:, None, :, None]  # (B, 1, T, S)
        return self.at

    def attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store block i's new k and v, (B, n_head, T, d), then attend with q to all that is visible: (B, n_head, T, d)."""
        keys, values = self.keys[i], self.values[i]  # (B, n_head, size, d)
        texts = torch.arange(len(k), device=k.device)[:, None]  # (B, 1)
        keys[texts, :, self.at] = k.transpose(1, 2).to(keys.dtype)  # (B, T, n_head, d)
        values[texts, :, self.at] = v.transpose(1, 2).to(values.dtype)
        S = self.visible.size(-1)
        return F.scaled_dot_product_attention(q, keys[:, :, :S], values[:, :, :S], attn_mask=self.visible)

    def layer(self, i: int) -> partial:
        return partial(self.attend, i)

    def newest(self, x: Tensor) -> Tensor:
        """Of x (B, T, C), the last new token of each text, (B, 1, C); `read` says how many are new."""
        return torch.stack([row[n - 1 : n] for row, n in zip(x, self.counts)])


@torch.no_grad()
def read(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read the new tokens of each text into the cache; logits (B, vocab_size) after each text. Dropout is off."""
    cache.counts = [len(text) for text in texts]
    # fill short rows up with zeros on the right
    T = max(cache.counts)
    idx = torch.tensor([[*text, *[0] * (T - len(text))] for text in texts], device=cache.keys.device)
    with evaluating(model):
        logits, _ = model(idx, cache=cache)  # (B, 1, vocab_size)
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the model's logits are NaN or infinite: training or its file failed")
    cache.lengths = [n + count for n, count in zip(cache.lengths, cache.counts)]
    return logits[:, 0]


def next_logits(model: GPT, cache: KVCache, texts: Sequence[list[int]]) -> Tensor:
    """Logits (B, V) after each text, reading what is new; a window of block_size that is full restarts with its last half."""
    limit = model.config.block_size
    # at first the complete prompts, or what fits of them
    if not any(cache.lengths):
        return read(model, cache, [text[-limit:] for text in texts])
    # a full window starts again with its last half, all of it but the newest token
    for b, text in enumerate(texts):
        if cache.lengths[b] == limit:
            half = KVCache(model, B=1, size=limit)
            tail = text[-max(1, limit // 2) : -1]
            if tail:
                read(model, half, [tail])
            cache.keys[:, b] = half.keys[:, 0]
            cache.values[:, b] = half.values[:, 0]
            cache.lengths[b] = len(tail)
    # then the newest token of each text
    return read(model, cache, [text[-1:] for text in texts])


def check_request(texts, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float) -> None:
    """ValueError, in one sentence, where a prompt or an option cannot work."""
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    if temperature != 0 and not 1e-30 <= temperature < math.inf:  # float32 divides by nothing much smaller
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a number from 1e-30 up")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")


def stream_batch(
    model: GPT, prompts: list[list[int]], max_new_tokens: int, temperature=1.0, top_k=None, top_p=1.0,
    stop=(), vocab_size: int | None = None, generator: torch.Generator | None = None,
) -> Iterator[list[int | None]]:  # fmt: skip
    """Continue all prompts; yields one new id for each, again and again, or None for a text that met one of `stop`.

    Ids from vocab_size on are never chosen. generator: by default a new one with seed 0.
    """
    check_request(prompts, max_new_tokens, temperature, top_k, top_p)
    generator = generator or torch.Generator().manual_seed(0)
    texts = [list(prompt) for prompt in prompts]
    ended = [False] * len(texts)
    size = min(model.config.block_size, max(map(len, texts)) + max_new_tokens)
    cache = KVCache(model, len(texts), size)
    for _ in range(max_new_tokens):
        probs = token_probs(next_logits(model, cache, texts)[:, :vocab_size], temperature, top_k, top_p)
        # one id for each text; a greedy choice needs no random number
        ids = draw(probs, generator) if temperature else probs.argmax(-1).tolist()
        # hand them out, until all texts have ended
        ended = [was or i in stop for was, i in zip(ended, ids)]
        if all(ended):
            return
        yield [None if end else i for i, end in zip(ids, ended)]
        texts = [[*text, i] for text, i in zip(texts, ids)]


def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return [i for (i,) in stream_batch(model, [prompt], max_new_tokens, **options)]


def stream_text(
    model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options
) -> Iterator[str]:
    """Continue `<|endoftext|>` and a text, piece by piece, until the model ends it or max_new_tokens; see stream_batch."""
    V = model.config.vocab_size
    if tokenizer.vocab_size > V:
        raise ValueError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model {V}; use its own")
    ids = [tokenizer.eot, *tokenizer.encode(prompt.removeprefix(EOT), allowed_special={EOT})]
    options = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | options
    pieces = (tokenizer.tokens[i] for (i,) in stream_batch(model, [ids], max_new_tokens, **options))
    return codecs.iterdecode(pieces, "utf-8", errors="replace")  # never half a character


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a model's, a run's or an adapter's folder, a Hugging Face folder or a name on the hub.

    tokenizer: gpt2, a tokenizer.json or a Hugging Face folder, where none is beside the weights, and GPT-2's does not fit.
    """
    folder = pick_checkpoint(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    if (folder / "adapter.json").is_file():
        lora, beside = import_module("nanogpt.labs.tuning.lora"), folder / "tokenizer.json"
        model, tokenizer = load(lora.base_of(folder), tokenizer or (beside if beside.exists() else None))
        return lora.merge(lora.load_adapter(model, folder)), tokenizer
    model = load_model(folder) if is_ours(folder) else load_pretrained(checkpoint)
    vocab = import_module("nanogpt.labs.corpora.vocab")
    return model, vocab.words_for(folder, tokenizer, model.config.vocab_size)


def parser() -> ArgumentParser:
    """The options of `python -m nanogpt sample`."""
    parser = ArgumentParser(epilog='Example: sample --checkpoint data/built/model --prompt "One sunny day,"')
    parser.add_argument("--checkpoint", required=True, help="folder of a model, or a name on the hub")
    parser.add_argument("--prompt", default="", help="the beginning of the text")
    parser.add_argument("--tokenizer", help="gpt2 or a tokenizer.json, if not the one beside the checkpoint")
    parser.add_argument("--device", help="cuda, mps or cpu, if not the best there is")
    parser.add_argument("--top-k", type=int, help="choose from the K likeliest tokens only")
    for name, default in {"temperature": 1.0, "top-p": 1.0, "max-new-tokens": 200, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"by default {default}")
    return parser


def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    if device.type == "cpu":
        model = import_module("nanogpt.labs.kernels.columns").by_columns(model)
    options = {name: getattr(args, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}
    options["generator"] = torch.Generator().manual_seed(args.seed)
    pieces = stream_text(model.to(device), tokenizer, args.prompt, **options)
    print(args.prompt + next(pieces, ""), end="", flush=True)  # first a piece: an option may be wrong
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)
