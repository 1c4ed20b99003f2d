"""Chapter 24c: SentencePiece's files, read and written; ids and texts are the library's, and nothing is lost."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.labs.formats.sentencepiece import (
    BYTE,
    CONTROL,
    MARK,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePiece,
    best_path,
    escaped,
    field,
    fields,
    from_varint,
    merge_by_score,
    read_model,
    to_varint,
    write_model,
)

BPE, UNIGRAM = merge_by_score, best_path
NAMES = {BPE: "bpe", UNIGRAM: "unigram"}  # as the library calls them
SPECIAL = [Piece("<unk>", kind=UNKNOWN), Piece("<s>", kind=CONTROL), Piece("</s>", kind=CONTROL)]
BYTES = [Piece(f"<0x{value:02X}>", kind=BYTE) for value in range(256)]
WORDS = [MARK, "a", "b", "c", "é", "ab", "bc", MARK + "a", MARK + "ab", "abc", "aa", "ca", MARK + MARK]


def made(cut=BPE, byte_fallback=True, **options) -> SentencePiece:
    normal = [Piece(text, -float(i) if cut is BPE else -1 - i / 3) for i, text in enumerate(WORDS)]
    return SentencePiece(SPECIAL + BYTES * byte_fallback + normal, cut, byte_fallback, **options)


EVERY = [
    made(cut, fallback, prefix=prefix, tidy=tidy)
    for cut, (fallback, prefix, tidy) in itertools.product(
        (BPE, UNIGRAM), [(True, True, False), (False, True, True), (True, False, True), (False, False, False)]
    )
]
NAMED = pytest.mark.parametrize("model", EVERY)


# Texts


def test_spaces_are_letters():
    assert escaped("a b") == "▁a▁b" and escaped("a b", prefix=False) == "a▁b"
    assert escaped("  a  b ") == "▁▁▁a▁▁b▁" and escaped("  a  b ", tidy=True) == "▁a▁b"
    assert escaped("") == escaped("  ", tidy=True) == ""


@pytest.mark.parametrize("cut", [BPE, UNIGRAM], ids=NAMES.get)
@given(text=st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_every_text_comes_back(cut, text):
    """With byte fallback, whatever Unicode holds; ▁ itself comes back as a space."""
    model = made(cut)
    assert model.decode(model.encode(text)) == text.replace(MARK, " ")


def test_a_foreign_id_is_refused():
    for wrong in (-1, made().vocab_size):
        with pytest.raises(ValueError, match=f"id {wrong}"):
            made().decode([0, wrong])


def test_a_broken_character_is_one_mark_a_byte():
    model = made()
    assert model.decode([model.ids[name] for name in ("<0xFF>", "<0xE3>", "<0x81>")]) == "\ufffd" * 3
    assert model.decode([model.ids["<0xC3>"], model.ids["a"], model.ids["<0xA9>"]]) == "\ufffda\ufffd"


def test_a_run_of_unknown_letters_is_one_id():
    model = made(byte_fallback=False, prefix=False)
    assert model.encode("axyzbx") == [model.ids["a"], 0, model.ids["b"], 0]
    assert model.decode(model.encode("axyzbx")) == "a ⁇ b ⁇ "


# Merges and paths


def slow_merges(text: str, scores: dict) -> list[str]:
    """The definition: of all neighbours the highest score, of equals the leftmost, again and again."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(text=st.text("abc", max_size=25), seed=st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_the_heap_merges_as_the_definition_says(text, seed):
    dice = random.Random(seed)
    words = ["".join(dice.choices("abc", k=dice.randint(2, 4))) for _ in range(12)]
    scores = {word: -float(dice.randint(0, 5)) for word in words}  # with equal ones
    assert merge_by_score(text, scores) == slow_merges(text, scores)


@given(text=st.text("abx", max_size=9), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_no_way_to_cut_is_better_than_the_best_path(text, seed):
    dice = random.Random(seed)
    words = {"".join(dice.choices("ab", k=dice.randint(1, 4))) for _ in range(8)}
    scores = {word: np.float32(-dice.random() * 9) for word in sorted(words)}
    lost = min(scores.values()) - 10

    def value(pieces) -> float:
        return sum(float(scores.get(piece, lost if len(piece) == 1 else -math.inf)) for piece in pieces)

    found = best_path(text, scores)
    assert "".join(found) == text
    for cuts in itertools.product([False, True], repeat=max(0, len(text) - 1)):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(text)]
        pieces = [text[a:b] for a, b in zip([0, *ends], ends)] if text else []
        assert value(pieces) <= value(found) + 1e-4


# The file


@given(value=st.integers(0, 2**64 - 1), before=st.binary(max_size=3))
@settings(max_examples=200, deadline=None)
def test_a_number_comes_back(value, before):
    data = before + to_varint(value) + b"\x05"
    assert from_varint(data, len(before)) == (value, len(data) - 1)


def test_numbers_are_protobufs():
    """The examples of Google's page on the encoding."""
    assert to_varint(150).hex() == "9601" and to_varint(-2).hex() == "feffffffffffffffff01"
    assert field(1, 150).hex() == "089601" and field(2, "testing").hex() == "120774657374696e67"
    assert list(fields(field(1, 150) + field(3, -1.5) + field(2, b""))) == [(1, 150), (3, -1.5), (2, b"")]


@NAMED
def test_written_and_read_it_is_the_same(model, tmp_path):
    write_model(model, tmp_path / "x.model")
    again = read_model(tmp_path / "x.model")
    rounded = [Piece(p.text, float(np.float32(p.score)), p.kind) for p in model.pieces]
    assert again.pieces == rounded and again.encode("ab é😀 ca") == model.encode("ab é😀 ca")
    for name in ("cut", "byte_fallback", "prefix", "tidy", "unk"):
        assert getattr(again, name) == getattr(model, name), name


def test_what_is_not_there_has_the_formats_default(tmp_path):
    (tmp_path / "x.model").write_bytes(field(1, field(1, "<unk>") + field(3, 2)) + field(1, field(1, "a")))
    model = read_model(tmp_path / "x.model")
    assert model.cut is UNIGRAM and not model.byte_fallback and model.prefix and model.tidy
    assert model.pieces == [Piece("<unk>", 0.0, UNKNOWN), Piece("a", 0.0, NORMAL)]


PLAIN = field(1, field(1, "a"))


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + field(2, field(3, 4)),  # of type char
        PLAIN + field(3, field(2, b"table")),  # changes letters, as the library's own default does
        PLAIN + field(5, field(2, b"table")),  # changes letters when it decodes
        PLAIN + field(2, field(44, "#")),  # decodes <unk> to something of its own
        PLAIN + field(3, field(5, 0)),  # keeps spaces as they are
        PLAIN + field(2, field(24, 1)),  # marks the ends of words
        PLAIN + field(1, field(1, "b") + field(3, USER_DEFINED)),
        PLAIN + field(1, field(1, "b") + field(3, UNUSED)),
        b"",
        PLAIN[:-1],
    ],
)
def test_what_it_does_not_know_is_refused(data, tmp_path):
    (tmp_path / "x.model").write_bytes(data)
    with pytest.raises(ValueError):
        read_model(tmp_path / "x.model")


# The library


def random_texts(seed: int, n: int) -> list[str]:
    dice = random.Random(seed)
    letters = [*"abc e▁é日本語😀\n\tZxq.", "the ", "  ", "and ", "\u200b", "ing"]
    return ["", " ", "   ", *("".join(dice.choices(letters, k=dice.randint(1, 30))) for _ in range(n))]


def compared(path, texts: list[str], seed: int = 0) -> SentencePiece:
    """Our reader beside the library on one file: ids of texts, and texts of ids, also of ids that no text has."""
    library = pytest.importorskip("sentencepiece")
    ours, theirs = read_model(path), library.SentencePieceProcessor(model_file=str(path))
    assert [theirs.id_to_piece(i) for i in range(len(ours.pieces))] == [piece.text for piece in ours.pieces]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text), repr(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)), repr(text)
    dice = random.Random(seed)
    for _ in range(300):
        ids = [dice.randrange(ours.vocab_size) for _ in range(dice.randint(0, 10))]
        assert ours.decode(ids) == theirs.decode(ids), [ours.pieces[i].text for i in ids]
    return ours


@NAMED
def test_the_library_reads_what_we_write(model, tmp_path):
    write_model(model, tmp_path / "x.model")
    compared(tmp_path / "x.model", random_texts(1, 300))


@pytest.mark.parametrize(("fallback", "tidy"), [(True, False), (False, True)])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_we_read_what_the_library_trains(kind, fallback, tidy, tmp_path):
    library = pytest.importorskip("sentencepiece")
    from nanogpt.labs.corpora.stories import stories

    told = [story.text for story in stories(150)] + ["日本語のテキスト、", "Zoë naïve café"] * 20
    (tmp_path / "text.txt").write_text("\n".join(told), encoding="utf-8")
    library.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), model_type=kind, vocab_size=500,
        byte_fallback=fallback, normalization_rule_name="identity", remove_extra_whitespaces=tidy,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    ours = compared(tmp_path / "m.model", [*told, *random_texts(2, 300)])
    write_model(ours, tmp_path / "again.model")
    assert compared(tmp_path / "again.model", told[:20]) == ours
