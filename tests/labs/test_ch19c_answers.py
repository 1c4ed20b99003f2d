"""The loss on answers alone: what counts, in batches, in validation, and in a run of the trainer."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_run import lines

from nanogpt import trainer
from nanogpt.cli import main
from nanogpt.config import Config, load_config
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.evaluate import evaluate, token_losses
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.tuning.answers import AnswerStream, answer_loss, in_answers
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train_step

T, B = 96, 4


def by_hand(row: list[int], marker: list[int], eot: int) -> list[bool]:
    """The same, token by token."""
    counted, answering = [], False
    for i, token in enumerate(row):
        if i >= len(marker) and row[i - len(marker) : i] == marker:
            answering = True
        counted.append(answering)
        if token == eot:
            answering = False
    return counted


@pytest.mark.parametrize("marker", [[7], [7, 5], [5, 5]])
def test_an_answer_is_what_follows_a_marker_up_to_and_with_its_end(marker):
    rows = torch.randint(4, 10, (200, 30), generator=torch.Generator().manual_seed(len(marker)))
    expected = [by_hand(row, marker, 9) for row in rows.tolist()]
    assert in_answers(rows, marker, 9).tolist() == expected
    assert 0.1 < np.mean(expected) < 0.9


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("data")
    ensure_corpus(folder, BPETokenizer.train((story.text for story in stories(100)), 300), n=200)
    return folder


@pytest.fixture(scope="module")
def old(data, tmp_path_factory):
    """Other stories, in the same tokens."""
    folder = tmp_path_factory.mktemp("old")
    ensure_corpus(folder, BPETokenizer.load(data / "tokenizer.json"), n=200, seed=5)
    return folder


@pytest.fixture(scope="module")
def marker(data):
    return BPETokenizer.load(data / "tokenizer.json").encode(" came with")


def small(data) -> GPT:
    shape = GPTConfig(block_size=T, vocab_size=300, n_layer=1, n_head=2, n_embd=16)
    return GPT(shape, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [BatchStream, DocumentStream])
def test_batches_are_the_streams_and_targets_count_in_answers_alone(data, marker, kind):
    paths = open_shards(data, "train")
    plain, masked = kind(paths, B, T), AnswerStream(kind(paths, B, T), marker)
    for _ in range(3):
        (x, y), (x2, y2) = plain.next_batch(), masked.next_batch()
        rows = torch.cat([x[:, :1], y], 1).tolist()
        counted = torch.tensor([by_hand(row, marker, plain.eot) for row in rows])[:, 1:]
        assert torch.equal(x, x2) and torch.equal(y2, torch.where(counted, y, -100))
        assert 0 < counted.sum() < counted.numel()
    assert masked.state_dict() == plain.state_dict()


def test_hidden_targets_have_no_gradient_and_the_step_is_the_mean_over_the_others(data, marker):
    model, stream = small(data), AnswerStream(DocumentStream(open_shards(data, "train"), B, T), marker)
    batches = [stream.next_batch() for _ in range(2)]
    logits = model(batches[0][0])[0].detach().requires_grad_()
    F.cross_entropy(logits.transpose(1, 2), batches[0][1], ignore_index=-100).backward()
    hidden = batches[0][1] == -100
    assert not logits.grad[hidden].any() and logits.grad[~hidden].any(1).all()
    nats = [F.cross_entropy(model(x)[0].transpose(1, 2), y, reduction="none")[y != -100] for x, y in batches]
    loss = train_step(model, torch.optim.SGD(model.parameters(), 0.1), batches)
    assert loss.item() == pytest.approx(torch.cat(nats).mean().item(), abs=1e-5)


def test_a_batch_without_an_answer_moves_nothing(data):
    model = small(data)
    before = [p.clone() for p in model.parameters()]
    x = torch.zeros(B, T, dtype=torch.int64)
    loss = train_step(model, torch.optim.SGD(model.parameters(), 0.1), [(x, torch.full_like(x, -100))])
    assert loss == 0 and all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_the_validation_loss_is_the_mean_over_answers(data, marker):
    model, tokens = small(data), read_shard(open_shards(data, "val")[0])
    with torch.no_grad():
        model.lm_head.weight *= 10  # so that some tokens cost more than others
    eot = BPETokenizer.load(data / "tokenizer.json").eot
    counted = np.array(by_hand(tokens.tolist(), marker, eot))[1:]
    expected = token_losses(model, tokens, eot)[counted].mean()
    assert answer_loss(model, [tokens], eot, marker=marker) == pytest.approx(expected)
    assert abs(expected - evaluate(model, [tokens], eot)) > 1e-3, "it would pass without a mask"
    with pytest.raises(ValueError, match="nowhere in the validation text"):
        answer_loss(model, [tokens[:3]], eot, marker=marker)


def words(data, folder, **changes) -> list[str]:
    keys = {"model_block_size": T, "model_n_layer": 1, "model_n_head": 2, "model_n_embd": 16}
    keys |= {"train_max_steps": 6, "train_batch_tokens": 2 * B * T, "train_micro_batch": B, "optim_warmup": 0}
    keys |= {"eval_every": 3, "eval_tokens": 2000, "run_checkpoint_every": 3, "run_dir": folder}
    keys |= {"run_device": "cpu", "eval_sample_every": 0, "data_dir": data}
    keys |= {"data_answers_after": " came with"} | changes
    return ["tiny", *(f"{key.replace('_', '.', 1)}={value}" for key, value in keys.items())]


def asked(data, folder, **changes) -> Config:
    name, *keys = words(data, folder, **changes)
    return load_config(name, keys)


def test_a_run_trains_and_validates_on_answers(data, marker, tmp_path):
    run = trainer.train_config(asked(data, tmp_path / "whole"))
    told = lines(tmp_path / "whole")
    assert told[-1]["val_loss"] == pytest.approx(answer_loss(run.model, *run.held, marker=marker), abs=1e-6)
    assert told[-1].get("floor") is None, "the floor is one of all tokens"
    trainer.train_config(asked(data, tmp_path / "all", data_answers_after="", train_max_steps=1))
    assert lines(tmp_path / "all")[0]["loss"] != told[0]["loss"], "without the key all targets count"


def test_each_folder_of_a_mixture_is_validated_under_its_name(data, old, marker, tmp_path):
    mix = f"{{{data}: 3, {old}: 1}}"
    run = trainer.train_config(asked(data, tmp_path / "run", train_max_steps=2, data_mix=mix))
    last, eot = lines(tmp_path / "run")[-1], run.held[1]
    ours, theirs = (read_shard(open_shards(folder, "val")[0])[:2000] for folder in (data, old))
    assert last["val_loss"] == pytest.approx(answer_loss(run.model, [ours], eot, marker=marker), abs=1e-6)
    everything = evaluate(run.model, [theirs], eot)  # of the other folder all tokens count
    assert last[f"val_loss of {old}"] == pytest.approx(everything, abs=1e-6)
    assert run.best["val_loss"] == last["val_loss"], "the best checkpoint is chosen by data.dir"


def test_a_marker_that_cannot_be_found_is_said_in_one_sentence(data, tmp_path, capsys):
    assert main(["train", *words(data, tmp_path / "run", data_answers_after="Answer:")]) == 2
    said = capsys.readouterr().err
    assert "data.answers_after is nowhere in the training text" in said and said.count("\n") == 1
