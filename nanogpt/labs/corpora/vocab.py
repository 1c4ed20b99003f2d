"""GPT-2's vocab.json and merges.txt, texts encoded by tiktoken, and bytes of text per token.

Exported from notebooks/16_real_text.ipynb, grown by notebooks/17d_assembly.ipynb.
"""

import json
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex

from nanogpt.files import atomically
from nanogpt.pretrained import find_checkpoint, is_ours
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer, merge_chunk

FEW = 1.1  # bytes of text per token


def bytes_per_token(size: int, tokens: int) -> str:
    """The ratio in words, with a warning where nearly every byte is a token. tokens: without `<|endoftext|>`."""
    ratio = size / max(tokens, 1)
    said = f"{ratio:.2f} bytes of text per token"
    if ratio < FEW:
        said += "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return said


@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode).

    Visible are the bytes 33 to 126, 161 to 172 and 174 to 255.
    """
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A token as GPT-2's files spell it."""
    return "".join(byte_characters()[byte] for byte in token)


def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist.

    Both as `spelled`, with a space between; a single byte has no line.
    """
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as GPT-2's authors did and transformers reads them."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


def stored_vocab(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The ids of all tokens, and the lines of the merges. Newer programs write both into one tokenizer.json, with more about it."""
    if (folder / "vocab.json").exists() or not (folder / "tokenizer.json").exists():
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8")
        return ids, [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    cut, model = saved["pre_tokenizer"], saved["model"]
    if saved["normalizer"] or cut["type"] != "ByteLevel" or cut["add_prefix_space"]:
        raise ValueError("it changes or cuts a text in another way than GPT-2")
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    return model["vocab"] | added, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """The tokenizer of a Hugging Face folder; OSError or ValueError in one sentence if it is not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    try:
        ids, lines = stored_vocab(Path(folder))
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{folder}: its vocabulary does not give bytes, merges and last {EOT} their ids, from 0 on"
        )
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but its vocabulary needs {len(needed):,} in its order"
        raise ValueError(f"{folder} has {what}; without them, bytes stay single: copy both again")
    return tokenizer


def read_tokenizer(name: str | os.PathLike) -> BPETokenizer:
    """GPT-2's tokenizer for "gpt2", that of a Hugging Face folder or its vocab.json, or that of chapter 01's tokenizer.json."""
    if str(name) == "gpt2":
        return BPETokenizer.gpt2()
    folder = Path(name).parent if Path(name).name == "vocab.json" else Path(name)
    return read_vocab(folder) if folder.is_dir() else BPETokenizer.load(name)


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


def words_beside(place: Path) -> Path | None:
    """The tokenizer beside a model's weights: our tokenizer.json, or the folder of a Hugging Face vocabulary. None if there is none."""
    if is_ours(place):
        own = place / "tokenizer.json"
        return own if own.exists() else None
    folder = find_checkpoint(place.as_posix())[0].parent
    return folder if any((folder / name).exists() for name in ("vocab.json", "tokenizer.json")) else None


def words_for(place: Path, named: str | None, rows: int) -> BPETokenizer:
    """The tokenizer of a model whose token table has so many rows: the one that is named, or the one beside its weights, or GPT-2's.

    ValueError if there is none, or if both are there and differ: an id would mean another word.
    """
    beside = words_beside(place)
    if named is None and beside is None and rows in (50257, 50304):  # GPT-2's, plain or padded
        named = "gpt2"
    if named is None and beside is None:
        raise ValueError(f"{place} has no tokenizer.json beside it; name one with --tokenizer")
    coder = read_tokenizer(named or beside)
    if named and beside and (own := read_tokenizer(beside).fingerprint) != coder.fingerprint:
        two = f"{place} has its own tokenizer, {own[:8]}, and {named} is another, {coder.fingerprint[:8]}"
        raise ValueError(f"{two}; leave out --tokenizer")
    return coder
