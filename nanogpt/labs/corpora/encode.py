"""Texts encoded by tiktoken, and bytes of text per token.

Exported from notebooks/16a_any_file.ipynb.
"""

import os
from itertools import pairwise

import numpy as np
import regex

from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.tokenizer import EOT, GPT2_PATTERN

FEW = 1.1  # bytes of text per token


def bytes_per_token(size: int, tokens: int) -> str:
    """The ratio in words, with a warning where nearly every byte is a token. tokens: without `<|endoftext|>`."""
    ratio = size / max(tokens, 1)
    said = f"{ratio:.2f} bytes of text per token"
    if ratio < FEW:
        said += "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return said


def load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer as tiktoken runs it in Rust, and as chapter 01 has it; OSError or ValueError in one sentence."""
    try:
        ours = read_tokenizer(name)
    except OSError as error:
        if str(name) != "gpt2":
            raise
        raise OSError(f"{error}; or give --tokenizer data/built/tokenizer.json (chapter 01)") from None
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in less time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway.

    Long are 1,000 characters and more. A run at the end of the text is not cut: there the pattern takes it whole.
    """
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


def encode_texts(texts: list[str], begin: bool, encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` if they begin. One call for all is faster than one for each."""
    before, begun = (EOT, len(texts)) if begin else ("", 0)
    joined = "".join(before + text for text in texts)
    apart = begin or len(texts) == 1  # else one text's end and the next one's beginning could make a token
    if apart and joined.count(EOT) == begun:  # else a document spells <|endoftext|> itself
        try:
            return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
        except ValueError:
            pass  # a run of white space that is too long for it (tiktoken 0.12 and later say so, earlier ones panic)
    ids = []
    for text in texts:
        ids.append(np.array([eot] if begin else [], np.uint32))
        ids += [encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_long_runs(text)]
    return np.concatenate(ids)
