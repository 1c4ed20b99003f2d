"""The command `sample` under its runner: what chapter 08's functions write, or one sentence."""

import io
import sys
from dataclasses import replace

import pytest
import torch

from nanogpt import sampling
from nanogpt.cli import run_command
from nanogpt.labs.formats.hf import to_hf
from nanogpt.model import GPT, GPTConfig
from nanogpt.sampling import complete, load
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import save_model

CONFIG = GPTConfig(block_size=24, vocab_size=61, n_layer=3, n_head=2, n_embd=32)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder as chapter 07 leaves it: weights, config and tokenizer."""
    tokenizer = BPETokenizer.train("the cat sat on the mat with the hat. " * 20, 270)
    folder = tmp_path_factory.mktemp("checkpoint")
    model = GPT(replace(CONFIG, vocab_size=tokenizer.vocab_size), generator=gen()).eval()
    with torch.no_grad():  # as it is initialised, it would repeat its last token for ever
        for p in model.parameters():
            p.mul_(8 if p.dim() == 2 else 1)
    save_model(model, folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder, model, tokenizer


def test_command_line_writes_what_complete_writes(checkpoint, capsys):
    folder, model, tokenizer = checkpoint
    how = ["--max-new-tokens", "40", "--device", "cpu", "--seed", "3"]
    how += ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95"]
    assert run_command("sample", ["--checkpoint", str(folder), "--prompt", "the cat", *how]) == 0
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "generator": gen(3)}
    expected = complete(model, tokenizer, "the cat", 40, **options)
    assert capsys.readouterr().out == "the cat" + expected + "\n"


def test_text_is_shown_as_it_is_made_and_ctrl_c_ends_it_in_one_line(checkpoint, monkeypatch, capsys):
    shown = io.BytesIO()

    def pieces(*args, **options):
        yield " sat"
        yield " on"
        assert shown.getvalue() == b"the cat sat on", "what was made is not shown yet"
        raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "stream_text", pieces)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown))
    assert run_command("sample", ["--checkpoint", str(checkpoint[0]), "--prompt", "the cat"]) == 130
    assert capsys.readouterr().err.strip() == "sample: stopped; no file was written"


def test_command_line_reads_hugging_face_folders(tmp_path, checkpoint, capsys):
    _, model, tokenizer = checkpoint
    to_hf(model, tmp_path / "hf")
    tokenizer.save(tmp_path / "tok.json")
    args = ["--checkpoint", str(tmp_path / "hf"), "--prompt", "the"]
    args += ["--max-new-tokens", "9", "--temperature", "0", "--tokenizer", str(tmp_path / "tok.json")]
    assert run_command("sample", args) == 0
    assert capsys.readouterr().out == "the" + complete(model, tokenizer, "the", 9, temperature=0) + "\n"


@pytest.mark.parametrize(
    "change, named",
    [
        ("--checkpoint broken", "config.json"),
        ("--checkpoint data/built/model", "chapter 07"),
        ("--tokenizer nowhere.json", "nowhere.json"),
        ("--temperature -1", "temperature=-1"),
        ("--device tpu", "tpu"),
        (f"--seed {2**70}", "1180591620717411303424"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(checkpoint, change, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    args = ["--checkpoint", str(checkpoint[0]), "--prompt", "the", "--device", "cpu", "--max-new-tokens", "3"]
    assert run_command("sample", [*args, *change.split()]) == 2
    out, err = capsys.readouterr()
    assert named in err and "\n" not in err.strip() and err.startswith("sample: ") and out == ""


def test_a_folder_of_hugging_faces_is_read_with_its_own_vocabulary(tmp_path):
    """Ids mean words by the vocabulary that made them, and not by their number: as many tokens as GPT-2's are not GPT-2's."""
    write_vocab = pytest.importorskip("nanogpt.labs.formats.merges").write_vocab  # chapter 16a
    folder = tmp_path / "gpt2-pt"
    own = BPETokenizer.train("o gato senta no tapete com o chapeu. " * 20, 270)
    to_hf(GPT(replace(CONFIG, vocab_size=own.vocab_size), generator=gen()), folder)
    with pytest.raises(ValueError, match="name one with --tokenizer"):
        load(str(folder))
    write_vocab(own, folder)
    assert load(str(folder))[1].fingerprint == own.fingerprint
    other = BPETokenizer.train("the cat sat on the mat with the hat. " * 20, 270)
    other.save(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"has its own tokenizer, .*; leave out --tokenizer"):
        load(str(folder), str(tmp_path / "other.json"))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ValueError, match="has 0 merges"):
        load(str(folder))
