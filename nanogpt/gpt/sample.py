"""Text from a model: temperature, top-k, top-p, penalties, and the command `sample`.

Exported from notebooks/08_sampling.ipynb.
"""

import codecs
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.device import pick_device
from nanogpt.gpt.cache import logits_after  # the second part of this chapter writes it
from nanogpt.gpt.columns import by_columns  # chapter 13
from nanogpt.gpt.model import GPT, check_ids
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.weights import load_model
from nanogpt.text.tokenizer import EOT, BPETokenizer


def keep(logits: Tensor, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Logits (B, V) with -inf for what top-k and then top-p leave out. Equal ones are all kept, or none.

    top_k: the k largest (Fan et al. 2018, §5.4). top_p: the fewest that reach the mass (Holtzman et al. 2020, §3.1).
    """
    if top_k:
        smallest = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if top_p < 1:
        sorted_logits = logits.sort(descending=True).values
        p = sorted_logits.softmax(-1)
        outside = p.cumsum(-1) - p >= top_p  # those before it, all larger, have the mass already
        outside[:, 0] = False
        smallest = sorted_logits.masked_fill(outside, math.inf).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    return logits


def token_probs(logits: Tensor, temperature=1.0, top_k: int | None = None, top_p=1.0) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature, then top-k, then top-p.

    temperature 0 gives all mass to the largest logit. ValueError in one sentence where an option cannot work.
    """
    if temperature != 0 and not 1e-30 <= temperature < math.inf:  # float32 divides by nothing much smaller
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a number from 1e-30 up")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # at most 0, however small that is
    return keep(logits, top_k, top_p).softmax(-1)


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, Keskar et al. 2019, §4.1) on logits (B, V) of the tokens in `seen`, (B, V) bool.

    Positive logits are divided by the penalty, negative ones multiplied, as in transformers: always downwards.
    """
    if not 0 < penalty < math.inf:
        raise ValueError(f"repetition_penalty={penalty} must be positive; 1 changes nothing")
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def draw(probs: Tensor, generator: torch.Generator) -> list[int]:
    """One id per row of probs (B, V); takes B numbers from `generator` and none from anywhere else."""
    # float64: 50,257 float32 sums would leave a rounding error larger than the rarest tokens.
    cdf = probs.to("cpu", torch.float64).cumsum(-1)
    u = torch.rand(len(cdf), 1, generator=generator, device=generator.device).cpu()
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).squeeze(1).tolist()


def choose(logits: Tensor, generator, seen: Tensor, repetition_penalty: float = 1.0, **how) -> list[int]:
    """The next id of each text, from logits (B, V): penalize, then token_probs, then draw. Greedy draws nothing.

    seen: (B, V), what has been written. how: temperature, top_k, top_p.
    """
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the model's logits are NaN or infinite: its training or its file failed")
    probs = token_probs(penalize(logits, seen, repetition_penalty), **how)
    return probs.argmax(-1).tolist() if how.get("temperature") == 0 else draw(probs, generator)


def checked(prompts: Sequence[Sequence[int]], max_new_tokens: int, vocab_size: int) -> list[list[int]]:
    """The prompts as lists; ValueError where one is empty or holds an id that the model does not have."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    texts = [list(map(int, prompt)) for prompt in prompts]
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    check_ids(torch.tensor([i for text in texts for i in text]), vocab_size)
    return texts


def stream_batch(
    model: GPT, prompts: list[list[int]], max_new_tokens: int, stop=(), vocab_size=None, generator=None, **how
) -> Iterator[list[int | None]]:
    """Continue all prompts; yields one new id for each, again and again, or None for a text that has ended.

    how: temperature, top_k, top_p, repetition_penalty. A text ends before the first id in `stop`. Ids from vocab_size
    on are never chosen. All randomness comes from `generator`, one number per text and token; by default from a new
    one with seed 0. Neither global generators nor the model's mode are changed. Any length is possible.
    """
    V, device = model.config.vocab_size, model.transformer.wte.weight.device
    texts, ended = checked(prompts, max_new_tokens, V), [False] * len(prompts)
    generator = generator or torch.Generator().manual_seed(0)
    seen = torch.zeros(len(texts), V, dtype=torch.bool, device=device)
    for row, text in zip(seen, texts):
        row[text] = True
    for logits in islice(logits_after(model, texts, max_new_tokens), max_new_tokens):
        ids = choose(logits[:, :vocab_size], generator, seen[:, :vocab_size], **how)
        ended = [was or i in stop for was, i in zip(ended, ids)]
        if all(ended):
            return
        yield [None if end else i for i, end in zip(ids, ended)]
        for text, row, i in zip(texts, seen, ids):
            text.append(i)
            row[i] = True


def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return [i for (i,) in stream_batch(model, [prompt], max_new_tokens, **options)]


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
    model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, stop: Collection[str] = (), **how
) -> Iterator[str]:
    """Continue a text, piece by piece, to its end-of-text token, a text in `stop`, or max_new_tokens.

    The prompt begins a document: `<|endoftext|>`, which training put there, is read before it. how: see stream_batch.
    """
    if "" in stop or isinstance(stop, str):
        raise ValueError(f"stop={stop!r} must be a list of texts, none of them empty")
    if tokenizer.vocab_size > (V := model.config.vocab_size):
        raise ValueError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model {V}; use its own")
    ids = tokenizer.encode(prompt.removeprefix(EOT), allowed_special={EOT})
    how = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | how
    tokens = (i for (i,) in stream_batch(model, [[tokenizer.eot, *ids]], max_new_tokens, **how))
    yield from as_text(tokens, tokenizer, stop)


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a course checkpoint, a Hugging Face GPT-2 folder, or a name on the hub.

    tokenizer: "gpt2" or a tokenizer.json; by default the one beside the checkpoint, or GPT-2's for GPT-2's size.
    """
    folder = Path(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    config, beside = folder / "config.json", folder / "tokenizer.json"
    ours = config.is_file() and "model_type" not in read_json(config)
    model = load_model(folder) if ours else from_hf(checkpoint)
    if tokenizer is None and ours and beside.exists():
        return model, BPETokenizer.load(beside)
    if tokenizer is None and not 50257 <= model.config.vocab_size <= 50304:  # GPT-2's, or padded (chapter 13)
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer in (None, "gpt2") else BPETokenizer.load(tokenizer)


HELP = """Continue a prompt with a trained model; the text appears as it is written.

  python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny day,"
  python -m nanogpt sample --checkpoint openai-community/gpt2 --prompt "Hello, I'm a language model," --top-k 50
"""


def parser() -> ArgumentParser:
    """The options of `python -m nanogpt sample`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", required=True, help="folder with config.json and model.safetensors, or hub name")
    add("--prompt", default="", help="the beginning of the text (default: none)")
    add("--tokenizer", help="gpt2 or a tokenizer.json (default: the one beside the checkpoint)")
    add("--max-new-tokens", type=int, default=200, metavar="N", help="stop after so many tokens (200)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy, 1: the model as it is (1)")
    add("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the fewest tokens with mass P (1)")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: avoid tokens used (1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--seed", type=int, default=0, help="the same seed writes the same text (0)")
    add("--device", help="cuda, mps or cpu (default: the best there is)")
    return parser


def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    how = {k: getattr(args, k) for k in ("temperature", "top_k", "top_p", "repetition_penalty", "stop")}
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model = by_columns(model) if device.type == "cpu" else model.to(device)
    generator = torch.Generator().manual_seed(args.seed)
    pieces = stream_text(model, tokenizer, args.prompt, args.max_new_tokens, generator=generator, **how)
    first = next(pieces, "")  # before the prompt, since an option may be wrong
    for piece in chain((args.prompt, first), pieces):
        print(piece, end="", flush=True)
    print(flush=True)
