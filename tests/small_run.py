"""A run so small that a step takes milliseconds, for the tests of chapters 17b to 17f; and a child process that ends where it is told."""

import contextlib
import gc
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from torch.optim import AdamW

from nanogpt import checkpoint
from nanogpt.build import ensure_data
from nanogpt.config import Config, Data, Eval, Model, Optim, Run, Train, config_dict
from nanogpt.labs.corpora.text import prepare_text
from nanogpt.labs.ladder.masters import MasterAdamW
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init
from nanogpt.weights import save_model

TIMES = "ms", "tokens_per_s", "mfu"
WORDS = "the a cat dog sun moon saw found lost ran sang slept and but in on red old"


def write_text(path: Path, paragraphs: int = 150) -> Path:
    """Paragraphs of random words, the same ones every time."""
    dice = random.Random(0)
    told = (" ".join(dice.choices(WORDS.split(), k=dice.randint(8, 30))) for _ in range(paragraphs))
    path.write_text("\n\n".join(told), encoding="utf-8")
    return path


def small(folder: Path, **changes) -> Config:
    """A run in folder/run on folder/data; a change is given as train_dtype="bf16"."""
    config = Config(
        model=Model(n_layer=1, n_head=2, n_embd=16, block_size=16, dropout=0.1),
        data=Data(dir=str(folder / "data"), source=str(folder / "text.txt"), tokenizer=280),
        optim=Optim(lr=1e-2, warmup=3),
        train=Train(max_steps=30, batch_tokens=192, micro_batch=4),
        eval=Eval(every=10, tokens=300, sample_every=15, prompt="the cat"),
        run=Run(dir=str(folder / "run"), device="cpu", checkpoint_every=4, keep=2, log_every=1000),
    )
    for name, value in changes.items():
        part, _, key = name.partition("_")
        config = replace(config, **{part: replace(getattr(config, part), **{key: value})})
    return config


def write_config(folder: Path, name: str, **changes) -> Path:
    """The same as a file for the command: a run in folder/name, with neither evaluation nor samples unless asked for."""
    changes = {"eval_every": 0, "eval_sample_every": 0} | changes
    config = small(folder, run_dir=str(folder / name), **changes)
    (path := folder / f"{name}.yaml").write_text(yaml.safe_dump(config_dict(config)))
    return path


def text_shards(folder: Path) -> str:
    """The folder of shards of such a text. Its vocabulary of 281 divides by no number of ranks."""
    text = write_text(folder / "text.txt")
    BPETokenizer.train(text.read_text(), 280).save(folder / "tokenizer.json")
    prepare_text(text, folder / "data", folder / "tokenizer.json")
    return str(folder / "data")


def fine_tuning_folder(folder: Path) -> Path:
    """Two texts as shards with one tokenizer, in data and other, and in base a model to begin with."""
    write_text(folder / "text.txt", paragraphs=60)
    manifest = ensure_data(small(folder).data)
    (folder / "other.txt").write_text("the old dog sang.\n\nred moon, old sun, the cat ran.\n\n" * 20)
    changes = {"data_dir": str(folder / "other"), "data_source": str(folder / "other.txt")}
    ensure_data(small(folder, data_tokenizer=str(folder / "data/tokenizer.json"), **changes).data)
    shape = GPTConfig(block_size=16, vocab_size=manifest["vocab_size"], n_layer=1, n_head=2, n_embd=16)
    save_model(scale_init(GPT(shape, torch.Generator().manual_seed(5))), folder / "base")
    return folder


def steps_done(run: Path) -> int:
    """Lines of metrics.jsonl so far."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(run: str | Path) -> list[dict]:
    """What metrics.jsonl says of each step, times aside."""
    told = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in TIMES} for line in told]


def weights(run: str | Path) -> bytes:
    """Of the newest checkpoint."""
    return (checkpoint.latest(run) / "model.safetensors").read_bytes()


# What a run does that a kill can come before: what is within a step or a look, and what changes the disk.
COMPUTING = "train_step", "update", "evaluate", "complete"
WRITING = "fsync", "replace", "rename", "rmtree", "serialize", "save_json", "save_model"


def train(config: Config):
    """Start the run in config.run.dir, or go on with it, as the command does since chapter 17f."""
    from nanogpt import trainer  # here: chapter 20's ranks need none

    if hasattr(trainer, "train_config"):
        return trainer.train_config(config)
    return trainer.fit(trainer.build_run(config))


def gradient_call() -> str:
    """What the trainer calls for a step's loss and gradient: chapter 17e's asks a judge before the update."""
    from nanogpt import trainer

    return "accumulate_gradients" if hasattr(trainer, "accumulate_gradients") else "train_step"


def count_events(die_at: int, among: tuple[str, ...], told: list, report) -> None:
    """From now on, note what a run does; SIGKILL before that one of those in `among` that has this number."""

    def counted(name: str, call):
        def event(*args, **options):
            told.append(name)
            if name in among and sum(one in among for one in told) == die_at:
                report.send(("died", name))
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return event

    from nanogpt import trainer

    setattr(trainer, gradient_call(), counted("train_step", getattr(trainer, gradient_call())))
    events = [(os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree")]
    events += [(checkpoint, name) for name in ("serialize", "save_json")]
    events += [(trainer, "evaluate"), (trainer, "complete")]
    events += [(trainer if hasattr(trainer, "save_model") else checkpoint, "save_model")]
    for module, name in events:
        setattr(module, name, counted(name, getattr(module, name)))
    for kind in (AdamW, MasterAdamW):
        kind.step = counted("update", kind.step)  # between a step's gradient and its update


def child(config: Config, die_at: int, among: tuple[str, ...], report) -> None:
    gc.freeze()  # what the server has loaded is no garbage, and looking at it would copy it
    torch.set_num_threads(1)
    told = []
    count_events(die_at, among, told, report)
    with open(os.devnull, "w") as nowhere, contextlib.suppress(BaseException):
        sys.stdout = sys.stderr = nowhere
        report.send(("ended", train(config).step))
    report.send(("events", told))


def run_in_child(config: Config, die_at: int = 0, among: tuple[str, ...] = ()) -> tuple[int, dict]:
    """Train in a process of its own, which kills itself before the die_at-th of the events in `among`, if it comes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "nanogpt.trainer"])  # what takes seconds to import
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(config, die_at, among, there))
    process.start()
    there.close()
    said = {}
    with contextlib.suppress(EOFError):
        while True:
            said.update([here.recv()])
    process.join()
    return process.exitcode, said


def losses(run: str | Path) -> list[float]:
    return [line["loss"] for line in lines(run)]


def before_steps(monkeypatch, call) -> None:
    """From now on call(run) comes before each step."""
    from nanogpt import trainer

    one_step = trainer.one_step

    def call_and_step(run):
        call(run)
        return one_step(run)

    monkeypatch.setattr(trainer, "one_step", call_and_step)


def stopped_after(config: Config, step: int, monkeypatch):
    """Train, and stop after a step, as by a file `stop`; the run."""
    with monkeypatch.context() as patch:
        before_steps(patch, lambda run: run.step == step - 1 and (run.folder / "stop").touch())
        run = train(config)
    assert run.step == step, "the run did not stop"
    return run


class Poisoned(torch.nn.Module):
    """A model whose loss, and with it every gradient, is so many times too large."""

    def __init__(self, model, factor: float):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x, y):
        logits, loss = self.model(x, y)
        return logits, loss * self.factor


def poisoned_steps(monkeypatch, factors: dict[int, float]) -> None:
    """{5: math.nan}: the fifth step that the process makes has such a loss."""
    from nanogpt import trainer

    step, made = getattr(trainer, gradient_call()), []

    def poisoned(model, *rest, **named):
        made.append(1)
        return step(Poisoned(model, factors.get(len(made), 1.0)), *rest, **named)

    monkeypatch.setattr(trainer, gradient_call(), poisoned)
