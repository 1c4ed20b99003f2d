"""GPT-2's vocab.json and merges.txt: written for others, read from others, the same ids."""

import json

import pytest
import regex
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from texts import SPACES, TEXT

from nanogpt.labs.corpora.encode import cut_long_runs, encode_texts, load_tokenizer
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.formats.merges import byte_characters, merge_lines, read_vocab, write_vocab
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer, merge_chunk

LETTERS = st.one_of(st.sampled_from(" \n\t'sltré写🙂\u3000\x00\xa0\xad"), st.characters(codec="utf-8"))
UNICODE = st.text(LETTERS, max_size=60)


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
    assert [ids[name] for name in ("!", "Ġ", "Ġt", "Ġthe", EOT)] == [0, 220, 256, 262, 50256]
    assert len(ids) == 50257
    lines = (gpt2_folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    assert lines[:6] == ["#version: 0.2", "Ġ t", "Ġ a", "h e", "i n", "r e"]
    assert len(lines) == 50_002 and lines[-1] == "" and lines[-2] == "Ġg azed"
    assert read_vocab(gpt2_folder).fingerprint == BPETokenizer.gpt2().fingerprint


VOCABULARIES = ["gpt2_folder GPT2Tokenizer", "gpt2_folder GPT2TokenizerFast", "folder GPT2TokenizerFast"]


@pytest.fixture(scope="module", params=VOCABULARIES)
def both(request):
    """transformers' tokenizer, from the two files of GPT-2 or of ones own, and ours."""
    transformers = pytest.importorskip("transformers")
    place, kind = request.param.split()
    folder = request.getfixturevalue(place)
    theirs = getattr(transformers, kind)(str(folder / "vocab.json"), str(folder / "merges.txt"))
    return theirs, read_vocab(folder)


@pytest.mark.slow
@given(UNICODE)
@example("naïve \u2028 I'll  go\n\n ")
@settings(max_examples=60)
def test_transformers_gives_the_same_ids_and_the_same_text(both, text):
    theirs, ours = both
    ids = ours.encode(text, allowed_special={EOT})
    assert theirs.encode(text) == ids
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text


def test_what_transformers_writes_is_read(folder, ours, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizers.Tokenizer(model).model.save(str(tmp_path))
    assert read_vocab(tmp_path).fingerprint == ours.fingerprint


def test_a_vocabulary_comes_back(folder, ours, tmp_path):
    assert read_vocab(folder).fingerprint == ours.fingerprint
    several = BPETokenizer(ours.vocab, special=["<|endoftext|>", "<|user|>"])
    write_vocab(several, tmp_path)
    assert read_vocab(tmp_path).special == several.special


def test_each_merge_makes_its_token(ours):
    lines = merge_lines(ours.vocab)
    assert len(lines) == len(ours.vocab) - 256
    known = {c: b for b, c in enumerate(byte_characters())}
    for line, token in zip(lines, ours.vocab[256:]):
        left, right = (bytes(known[c] for c in part) for part in line.split(" "))
        assert left + right == token
        assert merge_chunk(token, ours.ranks) == [ours.ranks[token]]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda ids, lines: lines.__delitem__(slice(90, None)), "has 89 merges"),
        (lambda ids, lines: lines.insert(1, lines.pop(5)), "in its order"),
        (lambda ids, lines: ids.pop("Ġ"), "its vocabulary"),
        (lambda ids, lines: ids.update({EOT: "last"}), "its vocabulary"),
        ("{", "its vocabulary"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(folder, tmp_path, harm, says):
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    if callable(harm):
        harm(ids, lines)
    (tmp_path / "vocab.json").write_text(json.dumps(ids) if callable(harm) else harm)
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        read_vocab(tmp_path)


def test_line_ends_of_windows_and_no_version_are_no_matter(folder, tmp_path, ours):
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    lines = (folder / "merges.txt").read_bytes().split(b"\n")[1:]
    (tmp_path / "merges.txt").write_bytes(b"\r\n".join(lines))
    assert read_vocab(tmp_path).fingerprint == ours.fingerprint


def test_the_one_file_of_newer_programs_gives_the_same_tokenizer(folder, tmp_path, ours):
    tokenizers = pytest.importorskip("tokenizers")
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    written = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    written.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    written.add_special_tokens([EOT])
    written.save(str(tmp_path / "tokenizer.json"))
    assert read_vocab(tmp_path).fingerprint == ours.fingerprint
    written.normalizer = tokenizers.normalizers.Lowercase()
    written.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="its vocabulary does not give"):
        read_vocab(tmp_path)


# Ids by tiktoken


@pytest.fixture(scope="module")
def encoding(folder):
    return load_tokenizer(folder)[0]


def test_a_folder_and_a_file_give_the_same_tokenizer(folder, ours, tmp_path):
    ours.save(tmp_path / "tokenizer.json")
    for name in (folder, tmp_path / "tokenizer.json"):
        encoding, loaded = load_tokenizer(name)
        assert loaded.fingerprint == ours.fingerprint and encoding.n_vocab == ours.vocab_size


@given(TEXT, st.text(SPACES, max_size=9))
@example("we'll it's 'so 'LL don't''re", "\n \n")
@settings(max_examples=100, deadline=None)
def test_the_pattern_written_for_speed_gives_the_same_ids(encoding, ours, text, end):
    assert encoding.encode_ordinary(text + end) == ours.encode(text + end)
    assert regex.findall(encoding._pat_str, text + end) == regex.findall(GPT2_PATTERN, text + end)


def test_a_megabyte_of_white_space_at_the_end_of_a_document(encoding):
    text = "x" + " \n" * 500_000
    assert encoding.decode(encoding.encode_ordinary(text)) == text


@given(TEXT, st.text(SPACES, min_size=1, max_size=4), st.sampled_from(" \n\t\xa0"), TEXT)
@example("a", " ", " ", "b")
@example("a", "\x1c ", " ", "b")  # str.isspace calls it white space, the pattern does not
@settings(max_examples=25, deadline=None)
def test_a_cut_in_a_long_run_of_white_space_is_one_of_the_patterns_own(left, run, last, right):
    text = left + run * 1000 + last + right
    chunks = [chunk for part in cut_long_runs(text) for chunk in regex.findall(GPT2_PATTERN, part)]
    assert chunks == regex.findall(GPT2_PATTERN, text)


def test_where_tiktoken_can_the_ids_are_its_own(gpt2_vocab):
    encoding, ours = load_tokenizer("gpt2")
    text = "x" + "\n  \t" * 200_000 + " y" + " " * 5000 + "z"
    expected = tiktoken.get_encoding("gpt2").encode(text, disallowed_special=())
    assert encode_texts([text], True, encoding, ours.eot)[1:].tolist() == expected
    cut = [i for part in cut_long_runs(text) for i in encoding.encode(part)]
    assert len(cut_long_runs(text)) == 3 and cut == expected


@given(st.lists(TEXT, min_size=1, max_size=4), st.booleans())
@example(["a", f"b{EOT}c", ""], True)
@example(["x" + " " * 2000 + "y", EOT], True)
@example(["e", "n"], False)  # which the vocabulary merges
@settings(max_examples=60)
def test_ids_of_many_texts_are_those_of_each(encoding, ours, texts, begin):
    """A document that spells <|endoftext|> begins no other."""
    expected = [i for text in texts for i in [ours.eot] * begin + ours.encode(text)]
    assert encode_texts(texts, begin, encoding, ours.eot).tolist() == expected
