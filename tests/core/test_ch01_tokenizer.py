"""Chapter 01: byte-level BPE. Laws, GPT-2's ids, damaged files, speed."""

import json
import os
import pickle
import random
import time
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course.paths import SOURCES
from nanogpt import tokenizer as module
from nanogpt.tokenizer import EOT, BPETokenizer, count_chunks, learn_merges, merge_chunk, replace

# Text as people write it, text as machines mangle it: any code point but surrogates, emoji with joiners,
# white space of all kinds, control characters, apostrophe endings, the special token's name.
PIECES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "\u3000", "\x00", "\x1c", "\x85", "\ufeff", EOT]
PIECES += ["\u200d", "\u0301", "<|", "endoftext", "🙂", "👩\u200d🚀", "🇩🇪", "👍🏽"]
PIECES += ["naïve", "写字", "عرب", "१२", "½"]
PIECES += ["'s", "'LL", "’re", "don't", "the", " the", "1234567", " 3.14", "def f(x):\n    return x\n", "!!!"]
PIECES += ["\U0010ffff", "aaaaaaa"]
WORDS = st.text("aehmnort", max_size=12)  # the letters of which the tests' own tokenizer has learned most
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8), WORDS), max_size=20).map("".join)


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    rng = random.Random(0)
    words = ["the", "then", "there", "other", "mother", "marbles", "marvel", "1024", "1066", "don't", "naïve"]
    words += ["🙂", "写字", "unbelievable", "consequences"]
    words += ["hypothesis", "def f(x):\n    return x", EOT]
    return BPETokenizer.train((" ".join(rng.choices(words, k=40)) + ".\n  " for _ in range(50)), 320)


@pytest.fixture(scope="module")
def gpt2(gpt2_vocab) -> BPETokenizer:
    return BPETokenizer.gpt2()


@pytest.fixture(scope="module")
def published(gpt2_vocab):
    import tiktoken

    return tiktoken.get_encoding("gpt2")


# --- training ---------------------------------------------------------------------------------------------------


def recount(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """BPE from its definition, sharing no code with the module. All symbols stand in one array, an `end` after each chunk."""
    end = 256 + n
    symbols = np.array([symbol for chunk in chunks for symbol in (*chunk, end)], dtype=np.int64)
    often = np.array([k for chunk, k in chunks.items() for _ in range(len(chunk) + 1)], dtype=np.int64)
    merges = []
    while len(merges) < n:
        pairs = symbols[:-1] * (end + 1) + symbols[1:]
        within = (symbols[:-1] != end) & (symbols[1:] != end)
        counts = np.bincount(pairs[within], often[:-1][within])
        if not counts.size:
            break
        best = int(counts.argmax())  # of those that are as frequent, the smallest
        found = []
        for i in np.flatnonzero(within & (pairs == best)).tolist():
            if not found or i > found[-1] + 1:  # aaa holds aa once
                found.append(i)
        symbols[found] = 256 + len(merges)
        symbols, often = (np.delete(array, np.array(found) + 1) for array in (symbols, often))
        merges.append(divmod(best, end + 1))
    return merges


# Two letters give ties and overlaps such as aaa at every turn; 99 merges exhaust every such text.
CHUNKS = st.text("ab", min_size=1, max_size=12).map(str.encode)
TWO_LETTERS = st.dictionaries(CHUNKS, st.integers(1, 5), max_size=8)


@settings(deadline=None, max_examples=220)
@given(TWO_LETTERS | TEXT.map(lambda text: count_chunks([text])))
@example({b"aaaaaaa": 1, b"aaab": 2})
@example({})
def test_merges_are_those_of_a_recount(chunks):
    assert learn_merges(chunks, 99) == recount(chunks, 99)


@pytest.mark.slow
def test_merges_are_those_of_hugging_face(tinyshakespeare):
    """Its Rust trainer has the same rule for ties. Bytes stand in for its characters, so that ids correspond."""
    tokenizers = pytest.importorskip(
        "tokenizers", reason="tokenizers comes with transformers, in the [dev] extra"
    )
    chunks = count_chunks([tinyshakespeare.read_bytes().decode()[:200_000]])
    # One private character per byte, in the order of the bytes; U+4DFF separates the chunks.
    words = ["".join(chr(0x4E00 + byte) for byte in chunk) for chunk, k in chunks.items() for _ in range(k)]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit("\u4dff")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + 767,
        initial_alphabet=[chr(0x4E00 + byte) for byte in range(256)],
        show_progress=False,
    )
    theirs.train_from_iterator(["\u4dff".join(words)], trainer)
    model = json.loads(theirs.to_str())["model"]
    assert all(model["vocab"][chr(0x4E00 + byte)] == byte for byte in range(256))
    merges = [tuple(model["vocab"][part] for part in pair) for pair in model["merges"]]
    assert len(merges) == 767
    assert learn_merges(chunks, 767) == merges


def test_training_takes_a_text_or_many_and_the_separator_is_never_learned():
    with_it = BPETokenizer.train(f"to be{EOT}or not{EOT * 50}to be", 262)
    assert with_it.vocab == BPETokenizer.train(iter(["to be", "or not", "to be"]), 262).vocab


def test_impossible_sizes_are_refused_and_the_largest_possible_one_is_not():
    """`abab` and ` b` hold three merges: ab, abab and " b"."""
    for size, possible in ((256, 257), (-1, 257), (261, 260)):
        with pytest.raises(ValueError, match=str(possible)):
            BPETokenizer.train("abab b", size)
    largest = BPETokenizer.train("abab b", 260)
    assert largest.vocab[256:] == [b"ab", b" b", b"abab"]
    assert (largest.vocab_size, largest.eot) == (260, 259)


# --- encoding ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=120)
@given(st.binary(max_size=60))
def test_ranks_say_what_the_list_of_merges_says(trained, chunk):
    """Lowest rank first, on any bytes, is the same as all merges in the order learned."""
    ids, vocab = list(chunk), trained.vocab
    for new in range(256, len(vocab)):
        pairs = {(a, b) for a, b in pairwise(ids) if vocab[a] + vocab[b] == vocab[new]}
        assert len(pairs) <= 1
        for pair in pairs:
            ids = replace(ids, pair, new)
    assert merge_chunk(chunk, trained.ranks) == ids


@pytest.fixture(scope="module", params=["trained", "gpt2"])
def ours_and_rust(request):
    ours = request.getfixturevalue(request.param)
    if request.param == "gpt2":
        return ours, request.getfixturevalue("published")
    return ours, ours.to_tiktoken()


@settings(deadline=None, max_examples=200)
@given(TEXT)
@example("")
def test_tiktoken_gives_the_same_ids_and_decoding_undoes_encoding(ours_and_rust, text):
    ours, rust = ours_and_rust
    ids, with_special = ours.encode(text), ours.encode(text, {EOT})
    assert ids == rust.encode_ordinary(text)
    assert with_special == rust.encode(text, allowed_special={EOT}, disallowed_special=())
    assert ours.decode(ids) == ours.decode(with_special) == text
    assert ours.eot not in ids


def test_gpt2_matches_tiktoken_on_white_space(gpt2, published):
    """Every run of up to three of these, between letters, at the start and at the end."""
    spaces = " \t\n\r\x0b\x1c\x1f\x85\u00a0\u200b\u2028\u3000\x00"
    for n in (1, 2, 3):
        for run in map("".join, product(spaces, repeat=n)):
            for text in (run, f"a{run}", f"{run}b", f"a{run}b", f"!{run}'s", f"1{run}2"):
                assert gpt2.encode(text) == published.encode_ordinary(text), repr(text)


def test_gpt2_matches_tiktoken_on_shakespeare(gpt2, published, tinyshakespeare):
    text = tinyshakespeare.read_bytes().decode()
    ids = gpt2.encode(text)
    assert ids == published.encode_ordinary(text)
    assert len(ids) == 338_025 and (gpt2.vocab_size, gpt2.eot) == (50257, 50256)
    assert gpt2.decode(ids) == text


@pytest.mark.slow
def test_gpt2_matches_tiktoken_on_every_character(gpt2, published):
    """All code points where Unicode has assigned some or may soon, and some of the empty rest."""
    assigned = *range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200)
    codes = *assigned, *range(0x34000, 0x110000, 101)
    texts = [f"a{chr(code)}1 {chr(code)}{chr(code)} b" for code in codes]
    for start in range(0, len(texts), 256):  # a call for each text would take twice as long
        many = texts[start : start + 256]
        if gpt2.encode("\n".join(many)) != published.encode_ordinary("\n".join(many)):
            wrong = [text for text in many if gpt2.encode(text) != published.encode_ordinary(text)]
            pytest.fail(f"other ids: {wrong or many}")


@pytest.mark.parametrize("text, place", [("\ud83d", "0"), ("ab \udc00", "3"), ("🙂\ud83d\ude42", "1-2")])
def test_lone_surrogates_are_refused_with_their_place(trained, text, place):
    for call in (trained.encode, lambda t: trained.encode(t, {EOT}), lambda t: BPETokenizer.train(t, 257)):
        with pytest.raises(ValueError, match=rf"in position {place}: surrogates not allowed"):
            call(text)


def test_allowed_special_tokens_are_ids_and_unknown_ones_are_refused(trained):
    text = f"a{EOT}{EOT}b"
    assert trained.encode(text, {EOT}) == [97, trained.eot, trained.eot, 98]
    assert trained.encode(text, [EOT]) == trained.encode(text, {EOT})
    for wrong in ({"<|user|>"}, EOT, "all"):
        with pytest.raises(ValueError, match="allowed_special"):
            trained.encode(text, wrong)


def test_of_overlapping_special_names_the_longest_counts():
    chat = BPETokenizer([bytes([i]) for i in range(256)], special=(EOT, "<|e", "<|e|>.*"))
    assert chat.encode("<|e|>.*<|e|", set(chat.special)) == [258, 257, ord("|")]


def test_foreign_ids_and_what_is_no_text_are_refused(trained):
    for bad in (320, -1, 50_000):
        with pytest.raises(ValueError, match=str(bad)):
            trained.decode([97, bad])
    for wrong in (None, b"abc", 3):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            trained.encode(wrong)


def test_a_remembered_chunk_is_not_handed_out(trained):
    first = trained.encode("mother")
    first.append(0)
    assert trained.encode("mother") == first[:-1]


def test_long_chunks_take_no_quadratic_time(trained):
    """Each pass over a chunk makes one merge everywhere: ten times the letters cost ten times the time, not a hundred."""
    rng = random.Random(2)
    text = "".join(rng.choices("aehmnort", k=50_000))
    seconds = []
    for n in (5_000, 50_000):
        start = time.process_time()
        BPETokenizer(trained.vocab).encode(text[:n])
        seconds.append(time.process_time() - start)
    assert seconds[1] < 40 * seconds[0]


# --- files and downloads ------------------------------------------------------------------------------------------


def test_saving_and_loading_is_exact(trained, tmp_path):
    path = tmp_path / "new" / "tokenizer.json"
    trained.save(path)
    loaded = BPETokenizer.load(path)
    assert loaded.fingerprint == trained.fingerprint
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["tokenizer.json"]


def test_the_fingerprint_covers_all_that_decides_an_id(trained):
    vocab = list(trained.vocab)
    others = [
        BPETokenizer([*vocab[:-2], vocab[-1], vocab[-2]]),
        BPETokenizer(vocab[:-1]),
        BPETokenizer(vocab, pattern=r"\w+|\W"),
        BPETokenizer(vocab, special=(EOT, "<|user|>")),
    ]
    assert len({t.fingerprint for t in [trained, *others]}) == 5
    assert BPETokenizer(vocab).fingerprint == trained.fingerprint
    assert len(trained.fingerprint) == 64


def test_every_damage_is_noticed(trained, tmp_path):
    """One byte changed, or the rest cut off, anywhere: one sentence, or a file that means exactly the same (white space, \\u00B5)."""
    path = tmp_path / "tokenizer.json"
    trained.save(path)
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(150):
        broken = bytearray(whole)
        broken[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            assert BPETokenizer.load(path).fingerprint == trained.fingerprint
            assert json.loads(broken) == json.loads(whole)
        except ValueError as error:
            assert str(error).startswith(f"{path} is no tokenizer that `save` wrote, or is damaged;")
            assert len(str(error).splitlines()) == 1
    for n in range(0, len(whole.rstrip()), 97):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="damaged"):
            BPETokenizer.load(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "{}", '{"vocab": 3}', '{"vocab": ["\\u4e00"]}', "\x00", "[" * 100_000],
)
def test_foreign_files_are_refused(text, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json .*damaged"):
        BPETokenizer.load(path)


def test_a_tokenizer_without_an_end_of_text_is_refused(trained):
    with pytest.raises(ValueError, match="add it"):
        BPETokenizer(trained.vocab, special=("<|user|>",))


def test_another_pattern_cuts_other_chunks(tmp_path):
    """Digits one by one: no token of two digits is learned, and the tokenizer remembers its pattern."""
    text = "12 123 1234 " * 20 + "number " * 20
    digits = module.GPT2_PATTERN.replace(r" ?\p{N}+", r" ?\p{N}")
    ours, plain = (BPETokenizer.train(text, 264, pattern) for pattern in (digits, module.GPT2_PATTERN))
    assert not any(sum(chr(b).isdigit() for b in token) > 1 for token in ours.vocab)
    assert any(sum(chr(b).isdigit() for b in token) > 1 for token in plain.vocab)
    ours.save(tmp_path / "tokenizer.json")
    assert BPETokenizer.load(tmp_path / "tokenizer.json").pattern == digits
    assert ours.decode(ours.encode(text)) == text


def test_a_save_that_is_stopped_leaves_the_old_file(trained, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    trained.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        BPETokenizer(trained.vocab[:300]).save(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    trained.save(path)  # what the stopped one left beside it is in nobody's way
    assert BPETokenizer.load(path).fingerprint == trained.fingerprint


def test_pickles_for_worker_processes(trained):
    assert pickle.loads(pickle.dumps(trained)).encode("the mother 🙂") == trained.encode("the mother 🙂")


@pytest.mark.parametrize(
    "content, says", [(None, "ConnectionError"), (b"<html>please log in</html>", "SHA-256")]
)
def test_gpt2_without_a_network_or_behind_a_hotels_is_one_sentence(monkeypatch, tmp_path, content, says):
    import requests
    import tiktoken

    def read_file(url):
        if content is None:
            raise requests.exceptions.ConnectionError("no route")
        return content

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tiktoken.load.read_file", read_file)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    with pytest.raises(OSError, match=says) as info:
        BPETokenizer.gpt2()
    assert len(str(info.value).splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("stories, size", [(5000, 1024), (5000, 600), (4000, 1024)])
def test_the_notebook_saves_an_edited_vocabulary_aside(trained, tmp_path, monkeypatch, stories, size):
    """Later chapters read tokenizer.json; a vocabulary of 600 there would change the meaning of every id."""
    cells = (SOURCES / "01_tokenizer.py").read_text(encoding="utf-8").split("# %%")
    (cell,) = [cell for cell in cells if "tokenizer-experiment.json" in cell and ".save(path)" in cell]
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(BPETokenizer, "train", lambda *_: trained)
    names = {"Path": Path, "BPETokenizer": BPETokenizer, "documents": []}
    exec(cell, names | {"STORIES": stories, "VOCAB": size})
    name = "tokenizer.json" if (stories, size) == (5000, 1024) else "tokenizer-experiment.json"
    assert [file.name for file in (tmp_path / "data" / "built").iterdir()] == [name]
