"""07 · Sampling: the model writes (exported from notebooks/07_sampling.ipynb)."""

import codecs
import math
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.device import pick_device
from nanogpt.model import GPT, GPTConfig, check_ids
from nanogpt.pretrained import from_hf, read_json
from nanogpt.tokenizer import EOT, BPETokenizer

__all__ = [
    "smallest_kept",
    "token_probs",
    "penalize",
    "draw",
    "choose",
    "linear",
    "by_columns",
    "KVCache",
    "cached_attention",
    "cached_logits",
    "prefill",
    "extend",
    "stream_batch",
    "checked",
    "stream",
    "generate",
    "as_text",
    "stream_text",
    "complete",
    "load",
    "HELP",
    "parse",
    "main",
]


def smallest_kept(logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """The smallest logit, (B, 1), that top-k and then top-p keep, of logits (B, V).

    top_k: the k largest (Fan et al. 2018, §5.4). top_p: the fewest that reach the mass (Holtzman et al. 2020, §3.1).
    """
    V = logits.size(-1)
    k = min(top_k or 1024, V)  # a nucleus rarely needs all 50,257 sorted, so first the largest 1,024
    top = logits.topk(k).values  # (B, k), largest first
    p = (top - (top if top_k else logits).logsumexp(-1, keepdim=True)).exp()
    if not top_k and k < V and p.sum(-1).min() < top_p:
        top = logits.topk(V).values
        p = top.softmax(-1)
    before = F.pad(p.cumsum(-1)[:, :-1], (1, 0))  # the mass of all larger ones
    outside = before >= (top_p if top_p < 1 else math.inf)  # rounding may bring it to 1 too early
    return top.masked_fill(outside, math.inf).amin(-1, keepdim=True)


def token_probs(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature, then top-k, then top-p.

    temperature 0 gives all mass to the largest logit. Of equal logits, either all are kept or none.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a positive number")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float() / temperature
    if top_k or top_p < 1:
        logits = logits.masked_fill(logits < smallest_kept(logits, top_k, top_p), -math.inf)
    return logits.softmax(-1)


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, Keskar et al. 2019, §4.1) on logits (B, V) of the tokens in `seen`, (B, V) bool.

    Positive logits are divided by the penalty, negative ones multiplied, as in transformers: always downwards.
    """
    if not penalty > 0:
        raise ValueError(f"repetition_penalty={penalty} must be positive; 1 changes nothing")
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def draw(probs: Tensor, generator: torch.Generator) -> list[int]:
    """One id per row of probs (B, V); takes B numbers from `generator` and none from anywhere else."""
    # float64: 50,257 float32 sums would leave a rounding error larger than the rarest tokens.
    cdf = probs.to("cpu", torch.float64).cumsum(-1)
    u = torch.rand(len(cdf), 1, generator=generator, device=generator.device).cpu()
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).squeeze(1).tolist()


def choose(
    logits: Tensor,
    generator: torch.Generator,
    seen: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
) -> list[int]:
    """The next id of each text, from logits (B, V): penalize, then token_probs, then draw. Greedy draws nothing."""
    if repetition_penalty != 1:
        logits = penalize(logits, seen, repetition_penalty)
    if temperature == 0:
        return logits.argmax(-1).tolist()
    return draw(token_probs(logits, temperature, top_k, top_p), generator)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """layer(x). For a single row on a CPU, each thread reads a share of the weight.

    Reading is all the time there is, and one thread alone cannot use the memory's whole bandwidth; yet BLAS
    libraries may give the product of a matrix and a vector only one.
    """
    n = torch.get_num_threads()
    W, (rows, C) = layer.weight, layer.weight.shape
    if x.device.type != "cpu" or x.numel() != C or n == 1 or rows * C < 2**18:  # small: not worth sharing out
        return layer(x)
    if W.stride(0) == 1 and C % n == 0:  # stored by columns: each thread sums over some of them
        y = torch.bmm(x.view(n, 1, C // n), W.T.view(n, C // n, rows)).sum(0).view(rows)
    else:
        share = rows // n
        shares = W[: n * share].view(n, share, C).transpose(1, 2)  # (n, C, share), the same memory
        y = torch.bmm(x.view(1, 1, C).expand(n, 1, C), shares).view(n * share)
        if n * share < rows:
            y = torch.cat([y, W[n * share :] @ x.view(C)])
    y = y if layer.bias is None else y + layer.bias
    return y.view(*x.shape[:-1], rows)


def by_columns(model: GPT) -> GPT:
    """Store each weight column by column: the same numbers, read faster by `linear`. For a model that only writes.

    Training goes on from it as well, but not bit for bit: sums come in another order.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.T.contiguous().T
    return model


@dataclass
class KVCache:
    """Keys and values of every layer for B texts, each (n_layer, B, size, n_embd); lengths: how many are filled."""

    keys: Tensor
    values: Tensor
    lengths: list[int]

    @classmethod
    def empty(cls, model: GPT, B: int, size: int) -> "KVCache":
        """Room for `size` tokens of B texts: 2 · n_layer · B · size · n_embd numbers of the weights' dtype."""
        weight, shape = model.transformer.wte.weight, (model.config.n_layer, B, size, model.config.n_embd)
        # Zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN.
        keys, values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        return cls(keys, values, [0] * B)


def cached_attention(
    attn: nn.Module, x: Tensor, keys: Tensor, values: Tensor, where: tuple, past: Tensor
) -> Tensor:
    """One layer's attention for T new tokens, (B, T, C) -> (B, T, C); writes their keys and values into the cache.

    keys, values: (B, end, C), the part of the cache in use. where: indices (B, 1) and (B, T) of the new tokens in it.
    past: (B, 1, T, end), true where a new token may look.
    """
    B, T, C = x.shape
    q, k, v = linear(x, attn.c_attn).split(C, dim=2)
    keys[where], values[where] = k, v
    q, k, v = (part.view(B, -1, attn.n_head, C // attn.n_head).transpose(1, 2) for part in (q, keys, values))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=past)  # softmax(qkᵀ/√d) v over the past, chapter 11
    return linear(y.transpose(1, 2).reshape(B, T, C), attn.c_proj)


@torch.no_grad()
def cached_logits(model: GPT, idx: Tensor, cache: KVCache, counts: Sequence[int] | None = None) -> Tensor:
    """Logits (B, V) after the last token of each text; keys and values of the new tokens go into the cache.

    idx: (B, T), the tokens that follow those in the cache; of row b the first counts[b] (T by default, at least 1).
    What follows them is padding: on the right, where causal attention never looks, and overwritten by the next call.
    Dropout is never called, so the model's training mode is neither read nor changed.
    """
    B, T = idx.shape
    counts, end = counts or [T] * B, max(cache.lengths) + T
    positions = torch.tensor(cache.lengths, device=idx.device)[:, None] + torch.arange(T, device=idx.device)
    texts = torch.arange(B, device=idx.device)[:, None]  # with positions (B, T): each text its own places
    past = torch.arange(end, device=idx.device) <= positions[:, None, :, None]  # (B, 1, T, end)
    x = model.transformer.wte(idx) + model.transformer.wpe(positions)  # (B, T, C)
    for block, keys, values in zip(model.transformer.h, cache.keys[:, :, :end], cache.values[:, :, :end]):
        x = x + cached_attention(block.attn, block.ln_1(x), keys, values, (texts, positions), past)
        hidden = F.gelu(linear(block.ln_2(x), block.mlp.c_fc), approximate="tanh")
        x = x + linear(hidden, block.mlp.c_proj)
    cache.lengths = [length + count for length, count in zip(cache.lengths, counts)]
    last = torch.tensor(counts, device=idx.device) - 1
    x = x[texts[:, 0], last].unsqueeze(1)  # (B, 1, C)
    return linear(model.transformer.ln_f(x), model.lm_head).squeeze(1)


def prefill(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read whole texts, of any lengths, into an empty cache; logits (B, V) after each."""
    longest = max(map(len, texts))
    idx = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return cached_logits(model, idx.to(cache.keys.device), cache, [len(text) for text in texts])


def extend(model: GPT, cache: KVCache, texts: Sequence[list[int]]) -> Tensor:
    """Logits (B, V) after texts of which the last token is new; a full window restarts with half of it."""
    limit = model.config.block_size
    for b, text in enumerate(texts):
        if cache.lengths[b] == limit:
            cache.lengths[b] = 0
            if tail := text[-max(1, limit // 2) : -1]:
                alone = KVCache(cache.keys[:, b : b + 1], cache.values[:, b : b + 1], [0])  # the same memory
                prefill(model, alone, [tail])
                cache.lengths[b] = len(tail)
    new = torch.tensor([[text[-1]] for text in texts], device=cache.keys.device)
    return cached_logits(model, new, cache)


def stream_batch(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    stop: Collection[int] = (),
    vocab_size: int | None = None,
    generator: torch.Generator | None = None,
    **how,
) -> Iterator[list[int | None]]:
    """Continue all prompts; yields one new id for each, again and again, or None for a text that has ended.

    how: temperature, top_k, top_p, repetition_penalty (see choose). A text ends before the first id in `stop`. Ids
    from vocab_size on, which a padded vocabulary has, are never chosen. All randomness comes from `generator`, one
    number per text and token; by default from a new one with seed 0. Nothing else is changed: not the global
    generators, not the model's mode. Any length is possible, see extend.
    """
    texts = checked(prompts, max_new_tokens, model.config)
    weight, limit = model.transformer.wte.weight, model.config.block_size
    generator = generator or torch.Generator().manual_seed(0)
    seen = torch.zeros(len(texts), model.config.vocab_size, dtype=torch.bool, device=weight.device)
    for row, text in zip(seen, texts):
        row[text] = True
    longest = max(map(len, texts))
    cache = KVCache.empty(model, len(texts), min(limit, longest + max_new_tokens))
    ended = [False] * len(texts)
    for n in range(max_new_tokens):
        logits = extend(model, cache, texts) if n else prefill(model, cache, [t[-limit:] for t in texts])
        ids = choose(logits[:, :vocab_size], generator, seen[:, :vocab_size], **how)
        ended = [was or i in stop for was, i in zip(ended, ids)]
        if all(ended):
            return
        yield [None if end else i for i, end in zip(ids, ended)]
        for text, row, i in zip(texts, seen, ids):
            text.append(i)
            row[i] = True


def checked(prompts: Sequence[Sequence[int]], max_new_tokens: int, config: GPTConfig) -> list[list[int]]:
    """The prompts as lists; ValueError where one is empty or holds an id that the model does not have."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    texts = [[int(i) for i in prompt] for prompt in prompts]
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    check_ids(torch.tensor([i for text in texts for i in text]), config.vocab_size)
    return texts


def stream(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> Iterator[int]:
    """Continue one prompt, id by id as they come; options as for stream_batch."""
    for (i,) in stream_batch(model, [prompt], max_new_tokens, **options):
        yield i


def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return list(stream(model, prompt, max_new_tokens, **options))


def as_text(tokens: Iterator[int], tokenizer: BPETokenizer, stop: Collection[str] = ()) -> Iterator[str]:
    """Decode ids as they come, never half a character; the text ends before the first of the texts in `stop`."""
    utf8, text = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    for token in tokens:
        text += utf8.decode(tokenizer.tokens[token])
        if found := [text.index(s) for s in stop if s in text]:
            text = text[: min(found)]
            break
        held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        if ready := text[: len(text) - held]:
            yield ready
        text = text[len(text) - held :]
    else:
        text += utf8.decode(b"", final=True)
    if text:
        yield text


def stream_text(
    model: GPT,
    tokenizer: BPETokenizer,
    prompt: str,
    max_new_tokens: int,
    *,
    stop: Collection[str] = (),
    **options,
) -> Iterator[str]:
    """Continue a text, piece by piece, to its end-of-text token, a text in `stop`, or max_new_tokens.

    An empty prompt begins a new document. `<|endoftext|>` in the prompt is that token. Options: see stream_batch.
    """
    if "" in stop or isinstance(stop, str):
        raise ValueError(f"stop={stop!r} must be a list of texts, none of them empty")
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.config.vocab_size}: "
            f"they do not belong together; use the tokenizer that the model was trained with"
        )
    ids = tokenizer.encode(prompt, allowed_special={EOT}) or [tokenizer.eot]
    options = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | options
    yield from as_text(stream(model, ids, max_new_tokens, **options), tokenizer, stop)


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a course checkpoint, a Hugging Face GPT-2 folder, or a name on the hub.

    tokenizer: "gpt2" or a tokenizer.json; by default the one beside the checkpoint, or GPT-2's for GPT-2's
    vocabulary. OSError or ValueError in one sentence where something is missing or does not fit.
    """
    folder = Path(checkpoint)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json, so it is no checkpoint; chapter 06 writes one")
    ours = folder.is_dir() and "model_type" not in read_json(folder / "config.json")
    if ours:
        from nanogpt.train import load_model

        model = load_model(folder)
    else:
        model = from_hf(checkpoint)
    beside = folder / "tokenizer.json"
    if tokenizer is None and ours and beside.exists():
        tokenizer = str(beside)
    # GPT-2's vocabulary, or padded as in chapter 12
    if tokenizer is None and 50257 <= model.config.vocab_size <= 50304:
        tokenizer = "gpt2"
    if tokenizer is None:
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)


HELP = """Continue a prompt with a trained model; the text appears as it is written.

  python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny morning"
  python -m nanogpt sample --checkpoint openai-community/gpt2 --prompt "Hello, I'm a language model," --top-k 50

A prompt longer than the model's context is read from its last tokens on; so is a text that outgrows it.
"""


def parse(argv: list[str] | None) -> Namespace:
    """The options of `python -m nanogpt sample`."""
    form = {"prog": "python -m nanogpt sample", "formatter_class": RawDescriptionHelpFormatter}
    parser = ArgumentParser(description=HELP, **form)
    add = parser.add_argument
    add("--checkpoint", required=True, help="folder with config.json and model.safetensors, or hub name")
    add("--prompt", default="", help="the text to continue (default: begin a new document)")
    add("--tokenizer", help="gpt2 or a tokenizer.json (default: the one beside the checkpoint)")
    add("--max-new-tokens", type=int, default=200, metavar="N", help="stop after so many tokens (200)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy, 1: the model as it is (1)")
    add("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the fewest tokens with mass P (1)")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: avoid tokens used (1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--seed", type=int, default=0, help="the same seed writes the same text (0)")
    add("--device", help="cuda, mps or cpu (default: the best there is)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt sample`. Exit code 0, 2 for bad input, 130 after Ctrl-C."""
    args = parse(argv)
    how = {k: getattr(args, k) for k in ("temperature", "top_k", "top_p", "repetition_penalty", "stop")}
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # not every terminal can show every character
    try:
        device = pick_device(args.device)
        model, tokenizer = load(args.checkpoint, args.tokenizer)
        model = by_columns(model) if device.type == "cpu" else model.to(device)
        how["generator"] = torch.Generator().manual_seed(args.seed)
        print(args.prompt, end="", flush=True)
        for piece in stream_text(model, tokenizer, args.prompt, args.max_new_tokens, **how):
            print(piece, end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print("\nsample: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has enough, as `head` does. Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"sample: {error}", file=sys.stderr)
        return 2
    return 0
