"""GPT-2's vocab.json and merges.txt: written for others, read from others, the same ids."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanogpt import cli
from nanogpt.bpe import merge_chunk
from nanogpt.corpus import stories
from nanogpt.shards import load_manifest
from nanogpt.tokenizer import EOT, BPETokenizer
from nanogpt.vocab import byte_characters, merge_lines, read_vocab, write_vocab

UNICODE = st.text(
    st.one_of(st.sampled_from(" \n\t'sltré写🙂\u3000\x00\xa0\xad"), st.characters(codec="utf-8")), max_size=60
)


@pytest.fixture(scope="module")
def ours() -> BPETokenizer:
    return BPETokenizer.train([story.text for story in stories(200)] + ["naïve 写 🙂 # # ## é"] * 30, 420)


@pytest.fixture(scope="module")
def folder(ours, tmp_path_factory):
    write_vocab(ours, path := tmp_path_factory.mktemp("vocab"))
    return path


@pytest.fixture(scope="module")
def gpt2_folder(gpt2_vocab, tmp_path_factory):
    write_vocab(BPETokenizer.gpt2(), path := tmp_path_factory.mktemp("gpt2"))
    return path


def theirs(folder, kind: str):
    """transformers' tokenizer, from the two files."""
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, kind)(str(folder / "vocab.json"), str(folder / "merges.txt"))


def test_every_byte_has_a_character_that_can_be_seen():
    characters = byte_characters()
    assert len(set(characters)) == 256 and all(c.isprintable() and not c.isspace() for c in characters)
    assert [characters[b] for b in b"A~ \n\x00\x7f\xad\xff"] == [*"A~ĠĊĀġŃÿ"]


def test_it_is_the_table_that_transformers_has():
    models = pytest.importorskip("tokenizers.pre_tokenizers")
    assert set(byte_characters()) == set(models.ByteLevel.alphabet())


@pytest.mark.slow
def test_gpt2s_files_are_those_that_were_published(gpt2_folder):
    """Facts of the published files: ids, the first merges, and how many there are."""
    ids = json.loads((gpt2_folder / "vocab.json").read_text(encoding="utf-8"))
    assert (ids["!"], ids["Ġ"], ids["Ġt"], ids["Ġthe"], ids[EOT], len(ids)) == (
        0,
        220,
        256,
        262,
        50256,
        50257,
    )
    lines = (gpt2_folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    assert lines[:6] == ["#version: 0.2", "Ġ t", "Ġ a", "h e", "i n", "r e"]
    assert len(lines) == 50_002 and lines[-1] == "" and lines[-2] == "Ġg azed"


@pytest.mark.slow
def test_gpt2_comes_back(gpt2_folder):
    assert read_vocab(gpt2_folder).fingerprint == BPETokenizer.gpt2().fingerprint


@pytest.fixture(scope="module", params=["GPT2Tokenizer", "GPT2TokenizerFast"])
def their_gpt2(gpt2_folder, request):
    return theirs(gpt2_folder, request.param), read_vocab(gpt2_folder)


@pytest.mark.slow
@given(UNICODE)
@example("naïve \u2028 I'll  go\n\n ")
@settings(max_examples=60)
def test_transformers_gives_the_same_ids_in_gpt2s_vocabulary(their_gpt2, text):
    their, our = their_gpt2
    assert their.encode(text) == our.encode(text, allowed_special={EOT})


@pytest.fixture(scope="module")
def their_own(folder):
    return theirs(folder, "GPT2TokenizerFast")


@pytest.mark.slow
@given(UNICODE)
@settings(max_examples=60)
def test_transformers_gives_the_same_ids_in_a_vocabulary_of_ones_own(their_own, ours, text):
    assert their_own.encode(text) == ours.encode(text)
    assert their_own.decode(ours.encode(text), clean_up_tokenization_spaces=False) == text


def test_what_transformers_writes_is_read(folder, ours, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizers.Tokenizer(model).model.save(str(tmp_path))
    assert read_vocab(tmp_path).fingerprint == ours.fingerprint


def test_a_vocabulary_comes_back(folder, ours):
    assert read_vocab(folder).fingerprint == ours.fingerprint
    several = BPETokenizer(ours.vocab, special=["<|endoftext|>", "<|user|>"])
    write_vocab(several, folder / "special")
    assert read_vocab(folder / "special").special == several.special


def test_each_merge_makes_its_token(ours):
    lines = merge_lines(ours.vocab)
    assert len(lines) == len(ours.vocab) - 256
    known = {c: b for b, c in enumerate(byte_characters())}
    for line, token in zip(lines, ours.vocab[256:]):
        left, right = (bytes(known[c] for c in part) for part in line.split(" "))
        assert left + right == token
        assert merge_chunk(token, ours.ranks) == [ours.ranks[token]]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda ids, lines: lines.clear(), "has 0 merges, but vocab.json needs 163 in its order"),
        (lambda ids, lines: lines.__delitem__(slice(1, None)), "has 0 merges, but vocab.json needs 163"),
        (lambda ids, lines: lines.__delitem__(slice(90, None)), "has 89 merges, but vocab.json needs 163"),
        (lambda ids, lines: lines.insert(1, lines.pop(5)), "has 163 merges, but vocab.json needs 163 in its order"),
        (lambda ids, lines: ids.pop("Ġ"), "vocab.json does not give bytes, merges and last <|endoftext|>"),
        (lambda ids, lines: ids.pop(EOT), "vocab.json does not give"),
        (lambda ids, lines: ids.update({"写": len(ids)}), "vocab.json does not give"),
        (lambda ids, lines: ids.update({EOT: 9999}), "vocab.json does not give"),
        (lambda ids, lines: ids.update({EOT: 0}), "vocab.json does not give"),
        (lambda ids, lines: ids.update({EOT: "last"}), "vocab.json does not give"),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_one_clear_sentence(folder, tmp_path, harm, message):
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    harm(ids, lines)
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        read_vocab(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "[1]", '"x"', "{", '{"a": {}}'])
def test_something_else_under_its_name_is_one_clear_sentence(folder, tmp_path, content):
    (tmp_path / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(ValueError, match=r"vocab.json does not give bytes"):
        read_vocab(tmp_path)


def test_line_ends_of_windows_and_no_version_are_no_matter(folder, tmp_path, ours):
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    lines = (folder / "merges.txt").read_bytes().split(b"\n")[1:]
    (tmp_path / "merges.txt").write_bytes(b"\r\n".join(lines))
    assert read_vocab(tmp_path).fingerprint == ours.fingerprint


def test_prepare_takes_the_folder(folder, ours, tmp_path):
    (tmp_path / "a.txt").write_text("Tom had a ball.")
    words = [str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--tokenizer", str(folder)]
    assert cli.run_command("prepare", words) == 0
    assert load_manifest(tmp_path / "out")["fingerprint"] == ours.fingerprint
