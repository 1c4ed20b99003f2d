# %% [markdown]
r"""
# 19c ◇ · Fine-tuning runs: adapters, mixtures and answers in the trainer

Chapters 19 and 19b fine-tuned a small model in a notebook, within seconds. A model that is worth the effort is larger, and its training takes a night. Then you want what chapter 17e built: a run that is a
file and a command, that validates itself, writes checkpoints, survives `kill -9`, and goes on. But that trainer knows one way to train. It trains all weights, it reads one folder, and every token counts. Fine-tuning changed
each of these three things:

| what fine-tuning changed | chapter | the key | what its lab changes in a run |
|---|---|---|---|
| small matrices are trained in place of all weights | 19 | `lora.rank` | the model, and the weights in a checkpoint |
| some of the rows are of old text | 19 | `data.mix` | the stream |
| only the answers count in the loss | 19b | `data.answers_after` | the targets, and the validation loss |

A lab is a module that the trainer imports if a key asks for it (chapter 17c). It has functions with the names of the trainer's own, and `hook` then calls these in their place. So this sitting writes three small modules, one for each key. The trainer itself does not change by a single line. How do we know that a key does what a chapter's own loop did? We write that loop once more beside the trainer's run, and compare the losses of the two, step by step.

(You may skip this sitting. Later ones use the keys, but do not explain anything with them.)
"""

# %%
#| default_exp labs.tuning.answers
#| doc labs.tuning.answers: The loss on answers alone: which tokens belong to an answer, in training and in validation.
#| doc labs.tuning.adapters: A run that trains adapters: they are made beside the weights of init_from, and kept alone.
import os
import random
import shutil
from collections import Counter

from course.notebook import answer, as_module, checkpoint, predict, predictions
from course.torchrun import so_far, so_far_killed
from nanogpt.build import hold_out
from nanogpt.config import load_config
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.prepare import prepare
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.tuning.rewards import Question, answer_logits, answers_only, questions, share_right
from nanogpt.metrics import read_metrics
from nanogpt.sampling import load
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.trainer import train_config
from nanogpt.training import train
from nanogpt.weights import load_model

# %%
#| export
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.data import BatchStream
from nanogpt.evaluate import token_losses
from nanogpt.model import GPT

# %% [markdown]
r"""
All sizes are set here: `N` steps of `B` rows, adapters of rank `RANK`, and `STORIES` stories that questions are taken from. One thread is enough for a model of this size. With several threads, sums may be added up in another order, and two processes could differ for this reason alone.
"""

# %%
N, B, RANK, LR, STORIES, HELD = 30, 8, 4, 3e-3, 1000, 120
device = pick_device()
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands below
torch.set_num_threads(1)  # and for this notebook
BUILT, MODEL = Path("../data/built"), Path("../data/built/model")
OLD, NEW, RUNS = BUILT / "stories", BUILT / "fine-tuning/questions", BUILT / "fine-tuning"
base = load_model(MODEL, device)  # chapter 07 wrote it
ensure_corpus(OLD)
tokenizer, T = BPETokenizer.load(OLD / "tokenizer.json"), base.config.block_size
assert base.config.vocab_size == tokenizer.vocab_size, f"{MODEL} has another vocabulary: run chapter 07"
shutil.rmtree(RUNS, ignore_errors=True)
print(f"{N} steps of {B} rows of {T} tokens, at a rate of {LR:g}")

# %% [markdown]
r"""
## A text with questions

Somebody who fine-tunes a model to answer has documents: a text, a question, an answer. Something must say where the answer begins, and the usual way is a fixed word. Our documents are the questions of chapter 19b: a story
up to a number that follows from it. We put a line break and `Answer:` before the number. The answer is the last word of the document.
"""


# %%
def written(n: int, seed: int) -> list[Question]:
    """The questions in some stories, each with "Answer:" before its answer, as a document has it."""
    found = []
    for question in questions(stories(n, seed=seed), tokenizer, T - 12):
        prompt = question.prompt + "\nAnswer:"
        ids = (tokenizer.eot, *tokenizer.encode(prompt + question.answer))
        found.append(Question(prompt, question.answer, ids))
    return found


RUNS.mkdir(parents=True)
lines = [json.dumps({"text": question.prompt + question.answer}) for question in written(STORIES, seed=2)]
(RUNS / "questions.jsonl").write_text("\n".join(lines) + "\n")
manifest = prepare(RUNS / "questions.jsonl", NEW, OLD / "tokenizer.json", val=0.1, test=0.0, workers=1)
print(f"{manifest['splits']['train']['documents']} documents to train on; the first one:")
print(json.loads(lines[0])["text"])

# %% [markdown]
r"""
`prepare` of chapter 16b has made shards of them, with the tokenizer of chapter 07's model. (With another tokenizer the ids would mean other words, and the trainer would refuse.)

`measure` says what a model can do. It asks the questions of other stories, as in chapter 19b, and gives the share of right first choices. And it evaluates the model on old stories, which tells us what was forgotten.
"""


# %%
held = written(300, seed=1)[:HELD]
old_text = hold_out(str(OLD), 5000)
results = {}


def measure(name: str, model) -> None:
    """Print the share of right answers, and the loss on old stories; keep them under a name."""
    right = share_right(model, held)["first"]
    old = evaluate(model, old_text, tokenizer.eot)
    results[name] = {"right": right, "old": old}
    print(f"{name}: {right:.0%} of {len(held)} answers are right; {old:.3f} nats a token on old stories")


# %% tags=["nbval-ignore-output"]
measure("before", base)
word, times = Counter(question.answer for question in held).most_common(1)[0]
print(f"always saying{word} would be right in {times / len(held):.0%}")
same = questions(stories(300, seed=1), tokenizer, T - 12)  # the same questions as chapter 19b has them
bare = list(same)[:HELD]
print(f"without the line Answer: {share_right(base, bare)['first']:.0%} of the same answers are right")

# %% [markdown]
r"""
Not one answer is right, although the same model gets more than four of ten of these questions right where the story simply goes on. It has never seen a line break or the word *Answer*. So the fine-tuning need not teach it to compute. It must teach it that here comes the number that the story asks for. The second line is the mark to beat: below it, a model has learned at most that a number comes.

## The run as it was

The run is a file (chapter 17c). It begins with chapter 07's model, it reads the questions, and its schedule is the one of chapter 07's `train`: no warm-up, and a fall at the end. The rate in the file is for adapters. The first run trains all weights, so it lowers the rate to 1e-3. (It calls `train_config` in the notebook, and `[2:]` drops the words that only a shell needs.)
"""

# %%
(RUNS / "answers.yaml").write_text(f"""
init_from: {MODEL}
model: {{block_size: {T}}}
data: {{dir: {NEW}, tokenizer: {OLD}/tokenizer.json}}
optim: {{lr: {LR}, betas: [0.9, 0.98], weight_decay: 0.01, clip: null, schedule: wsd, minimum: 0.0}}
train: {{max_steps: {N}, batch_tokens: {B * T}, micro_batch: {B}}}
eval: {{every: {N}, tokens: 3000}}
run: {{checkpoint_every: 10, keep: 2, log_every: {N}, device: {device}}}
""")


def command(name: str, *changes: str) -> list[str]:
    """The words behind `python -m nanogpt`: the run in this file, in a folder of its own, with some keys changed."""
    return ["train", f"{RUNS}/answers.yaml", f"run.dir={RUNS}/{name}", *changes]


# %% tags=["nbval-ignore-output"]
_ = train_config(load_config(f"{RUNS}/answers.yaml", command("all weights", "optim.lr=1e-3")[2:]))


# %% tags=["nbval-ignore-output"]
def look_at(name: str) -> None:
    """Measure a run's last model, and list the files of its checkpoint."""
    measure(name, load(str(RUNS / name))[0].to(device))
    for file in sorted((RUNS / name / f"step_{N:06d}").iterdir()):
        print(f"{file.stat().st_size / 2**10:8.0f} KiB  {file.name}")


look_at("all weights")

# %% [markdown]
r"""
This works with the trainer as it is. Look at three things, one for each key. The checkpoint has all weights and twice as many numbers of the optimizer, 6.2 MiB together. The loss on old stories has risen from 0.53 to 0.7: the model forgets. And the loss of 0.71 that was printed is a mean over *all* tokens of the documents, of which the answers are
only a few. So it says nothing about answers, of which almost none is right.
"""

# %% [markdown]
r"""
## Adapters

The first key is in a section of its own. At rank 0, the default, nothing changes.
"""

# %%
from nanogpt.config import Config, Data, Lora, Model, Train
from nanogpt.labs.tuning.lora import lora_parameters

print(Lora(rank=RANK))

# %% [markdown]
r"""
The trainer's `build_model` makes the model that a run starts with (chapter 17d). The lab has a function of the same name. It first asks for the model that the run would have without this key, and then puts adapters into it. The generator is seeded with the run's seed, and gives the adapters their first numbers.

`check` is called when a configuration is read. Adapters need trained weights beside them, so it refuses a run without `init_from`.
"""


# %%
#| export labs.tuning.adapters
from dataclasses import replace

import torch

from nanogpt import build
from nanogpt.config import Config, Lora, hook
from nanogpt.labs.tuning.lora import add_lora
from nanogpt.model import GPT


# %%
#| export labs.tuning.adapters
#| blank build_model: the model without the section lora, by hook; then add_lora with the section's rank, alpha and targets
def check(config: Config) -> None:
    """ValueError for adapters that have no trained weights beside them."""
    if config.init_from is None:
        rank = config.lora.rank
        raise ValueError(f"lora.rank={rank} adapts trained weights; set init_from to their folder")


def build_model(config: Config, manifest: dict) -> GPT:
    """The model of init_from, frozen, with adapters of config.lora, which alone are trained."""
    lora, plain = config.lora, replace(config, lora=Lora())
    model = hook(plain, build.build_model)(plain, manifest)
    generator = torch.Generator().manual_seed(config.run.seed)
    return add_lora(model, lora.rank, lora.alpha, lora.targets, generator)


# %%
as_module("labs.tuning.adapters")
sizes = {"model": Model(block_size=T), "train": Train(max_steps=N, micro_batch=B, batch_tokens=B * T)}
adapting = Config(data=Data(dir=str(NEW)), init_from=str(MODEL), lora=Lora(rank=RANK), **sizes)
model = build_model(adapting, manifest)
print(f"{sum(p.numel() for p in lora_parameters(model).values()):,} numbers are trained")
try:
    Config(lora=Lora(rank=RANK))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
(`as_module` lets the trainer find the notebook's functions under the module's name, although the checkpoint has not written the module yet.) The optimizer needs no change. Chapter 15's `make_optimizer` takes the parameters that are not frozen, and these are the adapters.

A checkpoint of such a run should keep the adapters alone, since the base is in `init_from` already. Then it is an adapter's folder as in chapter 19, which names its base, and `sample` and `eval` can read it. `snapshot` tells the trainer what a checkpoint holds, and what writes the weights: here chapter 19's `save_adapter`.

When the run goes on, `load_weights` puts the numbers back by chapter 19's `load_adapter`, which first compares a hash of the base. Suppose that somebody has trained the base further in the meantime. Without the check, the run would go on beside other weights, and no error would be raised. With it, `load_adapter` raises a ValueError.
"""


# %%
#| export labs.tuning.adapters
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nanogpt import trainer
from nanogpt.labs.tuning.lora import load_adapter, lora_parameters, save_adapter


# %%
#| export labs.tuning.adapters
def snapshot(run) -> tuple[GPT, dict, Callable]:
    """What a checkpoint of this run holds: its model, its state, and what writes of the model the adapters alone."""
    return run.model, run.state_dict(), partial(save_adapter, base_model=run.config.init_from)


def load_weights(run, folder: Path) -> None:
    """Give the run's adapters the numbers of a checkpoint. ValueError if the base is another one."""
    load_adapter(run.model, folder)


def attach(run) -> None:
    """Say how many numbers are trained."""
    numbers = sum(p.numel() for p in lora_parameters(run.model).values())
    trainer.say(f"{numbers:,} numbers in adapters are trained beside {run.config.init_from}")


# %%
as_module("labs.tuning.adapters")
run = trainer.build_run(adapting)
model, state, write = snapshot(run)
write(model, RUNS / "first")
print(*sorted(path.name for path in (RUNS / "first").iterdir()))
with torch.no_grad():
    model.transformer.ln_f.bias[3] += 1e-6
try:
    load_weights(run, RUNS / "first")
except ValueError as error:
    print(str(error).replace(str(RUNS), "…"))

# %% [markdown]
r"""
A millionth in one number of the base is enough. Now the run. `so_far` starts the command on the package as this notebook has made it until now. Beside it we run chapter 19's loop: the same adapters, the same stream, `train`.

*Predict.* By how much do the losses of the two differ, at most?
"""

# %%
predict("19c.1", "adapters: the trainer's losses and the loop's differ by", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
_ = so_far("19c", *command("adapters", f"lora.rank={RANK}"))


# %%
def by_hand(stream) -> tuple[GPT, list[float]]:
    """Chapter 19's loop: new adapters, and `train` on the stream. The model, and its losses."""
    model = add_lora(load_model(MODEL, device), RANK, generator=torch.Generator().manual_seed(0))
    return model, train(model, stream, N, LR)


def apart(name: str, ours: list[float]) -> float:
    """The largest difference of a run's losses from the loop's. It must be 0 on a CPU."""
    theirs = [line["loss"] for line in read_metrics(RUNS / name)]
    most = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert most == 0 or device.type != "cpu", f"the trainer's losses are {most:.1e} from the loop's"
    return most


new_rows = DocumentStream(open_shards(NEW, "train"), B, T, seed=0, device=device)
_, ours = by_hand(new_rows)
answer("19c.1", apart("adapters", ours))

# %% tags=["nbval-ignore-output"]
look_at("adapters")

# %% [markdown]
r"""
The difference is zero. The weights, the batches, the schedule and the update are the same ones, so every bit is. `sample` and `eval` take the folder of this run as any other: they find the adapter, its base, and merge the two (chapter 19's `load`).

The checkpoint is thirty times smaller, 0.2 MiB. It forgets less than the run before (0.61), but its rate and its number of weights differ as well, so that is no comparison. The weights of the base are not in it, and the optimizer keeps its two averages of the adapters alone.

## A mixture

Replay was the best remedy against forgetting in chapter 19. (In chapter 19b a smaller step did as well.) In the trainer it is one key: `data.mix` gives each folder of shards a weight. With `{questions: 6, stories: 1}`, six rows of seven are questions. Chapter 16c's `MixedStream` does the work. Its proportions are exact, and its place in the data is one number, so a run goes on at the same row.

`data.dir` remains the folder whose validation loss is `val_loss`, by which the best checkpoint is chosen. So it must be in the mixture, and `check` refuses a mixture without it. And all folders must have been made with the same tokenizer: `open_shards` compares the fingerprints.

The lab's `open_stream` takes the place of the trainer's. It first opens the stream that the run would have without this key. From this stream it takes the kind, the device, the number of rows and the rank. (One process is rank 0 of 1. Chapter 20a has several; until then a stream does not know its rank, and `rank_of` gives nothing.)
"""


# %%
from nanogpt.labs.corpora.mixture import MixedStream


# %%
#| export labs.corpora.mixture
from pathlib import Path

from nanogpt import build
from nanogpt.config import Config
from nanogpt.shards import load_manifest, open_shards


# %%
#| export labs.corpora.mixture
#| blank open_stream: for each folder a stream of the same kind as data.dir's, with B = 1; all in a MixedStream
def check(config: Config) -> None:
    """ValueError for a mixture without the folder that is validated, or with one folder under two names."""
    data = config.data
    if len({Path(folder).resolve() for folder in data.mix}) < len(data.mix):
        raise ValueError(f"data.mix names a folder twice: {', '.join(data.mix)}")
    if data.dir not in data.mix:
        raise ValueError(f"data.mix gives data.dir={data.dir} no weight; it has {', '.join(data.mix)}")


def rank_of(stream) -> dict[str, int]:
    """rank and world_size of a stream, as MixedStream takes them; empty before chapter 20: a run is one process."""
    return {name: value for name, value in vars(stream).items() if name in ("rank", "world_size")}


def open_stream(config: Config, reader) -> MixedStream:
    """Batches of the folders of data.mix. reader: a device, or several ranks, as the trainer's own open_stream has it.

    build.open_stream(config, reader) is the stream that the mixture takes the place of. Each folder gets a stream of
    its kind, with its T and (given by name) its seed and device. The mixture has its B and its rank_of.
    ValueError for a folder whose shards were made with another tokenizer (a manifest's "fingerprint") than data.dir's.
    """
    data = config.data
    # what the mixture takes the place of
    own = build.open_stream(config, reader)
    tokenizer = load_manifest(data.dir)["fingerprint"]
    # one row at a time of each folder
    streams = []
    for folder in data.mix:
        paths = open_shards(folder, "train", tokenizer)
        streams.append(type(own)(paths, 1, own.T, seed=own.seed, device=own.device))
    return MixedStream(streams, list(data.mix.values()), own.B, **rank_of(own))


# %%
import io
from contextlib import redirect_stdout

as_module("labs.corpora.mixture")
mix = {str(NEW): 6, str(OLD): 1}
sevens = {"train": Train(micro_batch=7, batch_tokens=7 * T), "model": Model(block_size=T)}
data = Data(dir=str(NEW), mix=mix, tokenizer=f"{OLD}/tokenizer.json")
mixing = Config(data=data, init_from=str(MODEL), **sevens)
# asks open_stream; in a complete package the run has something to say already
with redirect_stdout(io.StringIO()):
    seven, _ = trainer.build_run(mixing).stream.next_batch()
old_row = DocumentStream(open_shards(OLD, "train"), 1, T, seed=0, device=device).next_batch()[0][0]
print("of seven rows, from the old stories:", (seven == old_row).all(1).sum().item())

# %% [markdown]
r"""
The row is the first one of the old stories, as chapter 03's stream gives it.

At each validation the log should get one loss for each folder: `val_loss` for `data.dir`, and `val_loss of FOLDER` for every other one. Then you can watch two curves in one log: what is learned, and what is forgotten. The second kind is a look, which `attach` adds to the run's looks (chapter 17e). It measures the run on another held-out text, by the same function that `validate` calls.
"""


# %%
#| export labs.corpora.mixture
from dataclasses import replace

from nanogpt import trainer
from nanogpt.config import hook


# %%
#| export labs.corpora.mixture
def validate_others(run) -> dict:
    """The validation loss of each folder of the mixture but data.dir, on all of its tokens, for the step's line."""
    data, losses = run.config.data, {}
    plain = replace(run.config, data=replace(data, mix=None, answers_after=""))
    for folder in data.mix:
        if folder == data.dir:
            continue
        held = build.hold_out(folder, run.config.eval.tokens), run.held[1]
        loss = hook(plain, trainer.held_loss)(replace(run, config=plain, held=held))
        trainer.say(f"val loss {loss:.4f} of {folder}")
        losses[f"val_loss of {folder}"] = loss
    return losses


def attach(run) -> None:
    """Say what is mixed, and validate on the other folders when the run validates."""
    parts = [f"{weight} of {folder}" for folder, weight in run.config.data.mix.items()]
    trainer.say(f"of each {sum(run.config.data.mix.values())} rows {', '.join(parts)}")
    run.looks.append((run.config.eval.every, validate_others))


# %% tags=["nbval-ignore-output"]
as_module("labs.corpora.mixture")
_ = validate_others(trainer.build_run(mixing))

# %% [markdown]
r"""
## Only the answers count

Now the third key. In the loss above, most tokens belong to stories that the model need not learn. Chapter 19b's mask counted the answer alone. It was made from the grammar's own questions, but a trainer sees nothing but tokens. So the text itself must say where an answer begins. We let the same words precede every answer, here
`Answer:`, and the answer goes on up to the end of its document. The `<|endoftext|>` behind it counts as well, or the model would never learn to stop.

`in_answers` finds these tokens. For each place it compares two numbers: where the last marker ended, and where the last document ended. If the marker's is the larger one, the token belongs to an answer. `cummax` gives the largest value so far, place by place.
"""


# %%
#| export
#| blank in_answers: find markers with unfold; cummax keeps the last place behind a marker, and behind an eot: compare both
def in_answers(ids: Tensor, marker: list[int], eot: int) -> Tensor:
    """Which of ids (B, T) belong to an answer, behind a marker up to and with the next eot: booleans (B, T)."""
    T, n = ids.size(1), len(marker)
    found = (ids.unfold(1, n, 1) == torch.tensor(marker, device=ids.device)).all(-1)  # a marker begins here
    begins = F.pad(found, (n, 0))[:, :T]  # the place behind a marker
    ends = F.pad(ids == eot, (1, 0))[:, :T]  # the place behind an eot
    place = torch.arange(1, T + 1, device=ids.device)
    return (begins * place).cummax(1).values > (ends * place).cummax(1).values


# %%
ids = torch.tensor([[9, 5, 6, 7, 8, 9, 5, 6, 5, 7, 9, 6]])
print(ids[0].tolist(), "with the marker 7 and the eot 9:")
print(torch.where(in_answers(ids, [7], 9), ids, -100)[0].tolist())

# %% [markdown]
r"""
The 8 and the 9 behind the first 7 count, and so does the 9 behind the second 7. Everything else is −100, the number that no loss of this course counts.

`AnswerStream` takes a stream's place and hides the other targets in every batch. All else is the stream's own: its place in the data, its rows, its state in a checkpoint. So Python is told to look up every other name in the stream (`__getattr__`). If the first million tokens contain no marker at all, it is probably misspelled, and an error is raised before the run starts.
"""


# %%
#| export
#| blank AnswerStream.next_batch: the stream's batch; y gets -100 where in_answers of the row, x[:, :1] and y, says no
class AnswerStream:
    """A stream's batches, in which y is -100 outside of answers; all else is the stream's own.

    A row is the first token of x and then y: a marker may begin with that token. An answer whose marker is before its
    row does not count. ValueError if the first million tokens have none.
    """

    def __init__(self, stream: BatchStream, marker: list[int]):
        self.stream, self.marker = stream, marker
        first = torch.from_numpy(stream.tokens[0][:1_000_000].astype(np.int64))[None]
        if not in_answers(first, marker, stream.eot).any():
            raise ValueError("data.answers_after is nowhere in the training text; write it as it is there")

    def next_batch(self) -> tuple[Tensor, Tensor]:
        x, y = self.stream.next_batch()
        ids = torch.cat([x[:, :1], y], 1)
        y[~in_answers(ids, self.marker, self.stream.eot)[:, 1:]] = -100
        return x, y

    def __getattr__(self, name: str):  # for what is not found here
        return getattr(self.stream, name)

    @property
    def position(self) -> int:
        return self.stream.position

    @position.setter  # a mixture sets it
    def position(self, position: int) -> None:
        self.stream.position = position


# %%
marker = tokenizer.encode("Answer:")
rows = DocumentStream(open_shards(NEW, "train"), B, T, seed=0, device=device)
x, y = AnswerStream(rows, marker).next_batch()
print(f"{(y != -100).sum().item()} of {y.numel()} targets count; in the first row:")
print([tokenizer.decode([i]) if i != tokenizer.eot else "<|endoftext|>" for i in y[0][y[0] != -100].tolist()])
logits = base(x)[0].detach().requires_grad_()
F.cross_entropy(logits.transpose(1, 2), y, ignore_index=-100).backward()
assert not logits.grad[y == -100].any(), "a hidden target has a gradient"

# %% [markdown]
r"""
No hidden target sends a gradient into the model.

The validation must measure what is trained. With this key, the validation loss is a mean over the answers, which `answer_loss` computes.
"""


# %%
#| export
def answer_loss(
    model: GPT, shards: Iterable[np.ndarray], eot: int, precision="float32", *, marker: list[int]
) -> float:
    """Mean loss in nats per token over the answers of the shards. ValueError if they have none."""
    nats = n = 0
    for tokens in shards:
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        counted = in_answers(ids, marker, eot)[0, 1:].numpy()
        nats += token_losses(model, tokens, eot, precision=precision)[counted].sum().item()
        n += counted.sum().item()
    if not n:
        where = "nowhere in the validation text; raise eval.tokens, or set eval.every=0"
        raise ValueError(f"data.answers_after is {where}")
    return nats / n


# %% tags=["nbval-ignore-output"]
held_questions = hold_out(str(NEW), 3000)
of_answers = answer_loss(base, held_questions, tokenizer.eot, marker=marker)
of_all = evaluate(base, held_questions, tokenizer.eot)
print(f"chapter 07's model on the new text: {of_all:.3f} nats a token, {of_answers:.3f} on the answers")

# %% [markdown]
r"""
Now the trainer. The lab's `held_loss` takes the place of the function that `validate` calls. `attach` gets the run when it has been built. The run knows the tokenizer, so `marker_of` can turn the key's text into tokens.

What if the run reads a mixture? The old stories are there so that they are not forgotten. They have no `Answer:`, so a mask on every row would hide all of them, and replay would do nothing. The key is therefore a property of `data.dir`: in its documents the answers alone count, and in the other folders all tokens do. So `attach` replaces one stream of the mixture.

One more thing must go. With the validation loss, the trainer logs the floor of the grammar, if the shards know it. That floor is one of all tokens, so `without_floor` takes it out of the line.
"""


# %%
#| export
def marker_of(run) -> list[int]:
    """The tokens that precede an answer. ValueError if the tokenizer of the shards is not known."""
    data = run.config.data
    if run.tokenizer is None:
        raise ValueError(f"data.answers_after needs the tokenizer of {data.dir}; set data.tokenizer")
    return run.tokenizer.encode(data.answers_after)


def held_loss(run) -> float:
    """The validation loss: the mean over the answers."""
    return answer_loss(run.model, *run.held, run.config.train.dtype, marker=marker_of(run))


def without_floor(run) -> dict:
    """For the step's line: the floor of all tokens is none of the answers."""
    return {"floor": None}


def attach(run) -> None:
    """Let only the answers of data.dir count in the run's batches; in other folders of a mixture all tokens do."""
    data, marker = run.config.data, marker_of(run)
    if data.mix:
        own = list(data.mix).index(data.dir)
        run.stream.streams[own] = AnswerStream(run.stream.streams[own], marker)
    else:
        run.stream = AnswerStream(run.stream, marker)
    run.looks.append((run.config.eval.every, without_floor))


# %%
as_module("labs.tuning.answers")
answering = replace(mixing, data=replace(mixing.data, answers_after="Answer:"))
_, y = trainer.build_run(answering).stream.next_batch()
print("targets that count, row by row:", (y != -100).sum(1).tolist())

# %% [markdown]
r"""
Six rows have a few targets each, and the row of the old stories has all of them.
"""

# %% [markdown]
r"""
Before the trainer runs, we ask the loop: what does the mask do to the model, without a mixture?

*Predict.* Chapter 07's model pays 0.53 nats a token on old stories. How much will it be after these steps?
"""

# %%
predict("19c.2", "old stories, after training on answers alone", guess=None, unit="nats a token")

# %% tags=["nbval-ignore-output"]
answers_alone = AnswerStream(DocumentStream(open_shards(NEW, "train"), B, T, seed=0, device=device), marker)
alone, _ = by_hand(answers_alone)
measure("answers alone", alone)
answer("19c.2", round(results["answers alone"]["old"], 2))

# %% [markdown]
r"""
More answers are right than after the runs before, but always saying *five* would be right more often. What has the model learned? We look at what it says, behind `Answer:` and in the middle of an old story.
"""

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    logits, _ = answer_logits(alone, *answers_only(held, device))
    x, _ = DocumentStream(open_shards(OLD, "train"), B, T, seed=1, device=device).next_batch()
    in_stories = alone(x)[0].argmax(-1)
words = Counter(tokenizer.decode([i]) for i in logits.argmax(-1).tolist())
print("behind Answer:", ", ".join(f"{times} times{word}" for word, times in words.most_common(4)))
print(
    f"in old stories: {(in_stories == tokenizer.eot).float().mean():.0%} of all first choices are <|endoftext|>"
)

# %% [markdown]
r"""
It has not learned to answer. It says one of two numbers, whatever the story is. And in a story it wants to stop behind nearly every word. It has only been shown two kinds of targets, a number and the end of a document, and nothing told it to keep the others. (The weights of the base are untouched. Without the adapter the model is chapter 07's again, with 0.53 nats.) So the mixture is needed here more than anywhere.

Which weights? The loss is a mean over all targets that count. We count those of the batch above: rows of questions, and one row of stories.
"""

# %%
*of_questions, of_stories = sorted((y != -100).sum(1).tolist())
print(f"{len(of_questions)} rows of questions: {sum(of_questions)} targets; one row of stories: {of_stories}")

# %% [markdown]
r"""
A single row of stories has more targets than all the answers of its batch together. So one in each batch is enough. Our batches have 8 rows, so the weights are 7 and 1.

Now the three keys together. Beside the trainer's run we make the same stream by hand, and run the loop.
"""

# %% tags=["nbval-ignore-output"]
KEYS = [f"lora.rank={RANK}", f"data.mix={{{NEW}: {B - 1}, {OLD}: 1}}", "data.answers_after=Answer:"]
_ = so_far("19c", *command("all three", *KEYS))

# %%
parts = [DocumentStream(open_shards(folder, "train"), 1, T, seed=0, device=device) for folder in (NEW, OLD)]
_, ours = by_hand(MixedStream([AnswerStream(parts[0], marker), parts[1]], [B - 1, 1], B))
print(f"{N} losses, at most {apart('all three', ours):g} nats apart")

# %% tags=["nbval-ignore-output"]
look_at("all three")
for name, found in results.items():
    print(f"{name:14} {found['right']:5.0%} right, {found['old']:.3f} nats a token on old stories")

# %% [markdown]
r"""
The trainer is the loop again, to the last bit. Now compare the last two lines of the table. One row of stories in each batch has brought the loss on old stories back to nearly what it was before. But 19% of the answers are no more than always saying *five* gets, and with 120 questions a standard error is three to four points. So nobody has learned to answer yet. Are thirty steps too few? The loop, which makes the trainer's steps, can make four times as many.
"""

# %% tags=["nbval-ignore-output"]
longer_run = add_lora(load_model(MODEL, device), RANK, generator=torch.Generator().manual_seed(0))
parts = [DocumentStream(open_shards(folder, "train"), 1, T, seed=0, device=device) for folder in (NEW, OLD)]
train(longer_run, MixedStream([AnswerStream(parts[0], marker), parts[1]], [B - 1, 1], B), 4 * N, LR)
measure(f"all three, {4 * N} steps", longer_run)

# %% [markdown]
r"""
That is twice what *five* would get. But are these answers about their stories? We ask the same questions once more and give each of them the story of another one. The right answers stay. A model that reads the story should now do no better than one that guesses.
"""

# %% tags=["nbval-ignore-output"]
exchanged = []
for question, other in zip(held, held[1:] + held[:1]):
    ids = (*other.ids[:-1], question.ids[-1])
    exchanged.append(Question(other.prompt, question.answer, ids))
print(
    f"with the story of another question: {share_right(longer_run, exchanged)['first']:.0%} of the same answers"
)

# %% [markdown]
r"""
Without its own story it falls from 37% to 21%, about what always saying *five* gets. So it answers now, from the story: nearly as often as the model can without the new format, and at hardly any price on the old stories (0.53 nats, as before). The runs of thirty steps show that the machinery works, and no more. The table does not show whether adapters forget less than all weights, since these runs differ in their rate. Chapter 19 compares the two ways at several rates.

## Killed

Does such a run go on, bit for bit? There are new things that a checkpoint can forget: the adapters, their averages in the optimizer, and the place in a mixture. We start the last run again in another folder, and end it by `kill -9` at a random moment within a random step. (`so_far_killed` waits until the run has written so many lines, then a fraction of a second.) Then the same command goes on.
"""

# %% tags=["nbval-ignore-output"]
dice = random.Random(0)
after, longer = dice.randint(N // 2, N - 3), dice.uniform(0, 0.05)
died = so_far_killed("19c", RUNS / "killed/metrics.jsonl", after, longer, *command("killed", *KEYS))
print(f"killed after {died} steps")
told = so_far("19c", *command("killed", *KEYS))
assert "going on after step" in told, "the run has begun anew"

# %%
whole, killed = read_metrics(RUNS / "all three"), read_metrics(RUNS / "killed")
for name in ("loss", "norm", "lr", "val_loss", f"val_loss of {OLD}"):
    assert verdict(whole, killed, name)[0] == 0, f"after the kill the run has another {name}"
print(verdict(whole, killed, "loss")[1])
for file in ("adapter.safetensors", "state.safetensors"):
    one, two = ((RUNS / run / f"step_{N:06d}" / file).read_bytes() for run in ("all three", "killed"))
    assert one == two, f"{file} differs"
print("the adapters, the optimizer's averages and the place in the data are equal to the last bit, too")

# %% [markdown]
r"""
One kill proves little. The tests kill a run with each of the keys, and one with all three, several times: half of the kills come within a step or an evaluation, half at a change of the disk.

## What will it take?

`--dry-run` (chapter 17c) tells what a run needs before it starts. For a run with adapters it must count otherwise. They alone have gradients and averages. And a frozen matrix needs no gradient, which saves a third of the products in its layer. The activations stay nearly what they were (chapter 19). The functions are in the appendix.

*Predict.* With adapters of rank 4, the gradients and the optimizer's averages need which share of what they need for all weights?
"""

# %%
predict("19c.3", "gradients and averages of adapters, of those of all weights", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
_ = so_far("19c", *command("dry", *KEYS), "--dry-run")

# %%
adapted = sum(p.numel() for p in lora_parameters(model).values())
answer("19c.3", round(100 * adapted / sum(p.numel() for p in base.parameters()), 1))

# %% [markdown]
r"""
Gradients and averages shrink to 3%. But nearly nine tenths of what is left are activations, which adapters do not save. With a mixture, the dry run has a line for each folder, which says how often the run reads it.

That is all. Each key has a lab of a few functions, and the three work together, although none of them knows the others' functions. The dry run had to follow, but the loop, the step and the checkpoint did not change. On several processes the keys work as well, as the tests of chapter 20a show: each rank has its own rows of the mixture, and the mean over the answers is one over all ranks. Only a model that is cut into parts (chapter 21d) refuses adapters and answers, in one line.
"""

# %% [markdown]
r"""
## Appendix: the dry run of adapters and mixtures

Chapter 19's appendix has `of_adapters`, which corrects the memory of a run that trains adapters alone, and `frozen`, which corrects the seconds of its step. Here is the memory of one micro-batch, with all weights and with adapters:
"""

# %%
from nanogpt import optim
from nanogpt.labs.plan.dryrun import (
    adapter_numbers,
    frozen,
    measure_roofline,
    of_adapters,
    say_time,
    shape_of,
)
from nanogpt.labs.plan.dryrun import step_seconds
from nanogpt.labs.roofline.memory import memory_by_category
from nanogpt.labs.roofline.work import predict_step
from nanogpt.model import GPTConfig, num_params
from nanogpt.precision import READS, LossScaler
from nanogpt.labs.roofline.clock import Roofline, timings
from nanogpt.training import train_step


# %%
shape = base.config
one_micro_batch = memory_by_category(shape, B, T)
for name, config in {"all weights": replace(adapting, lora=Lora()), "adapters": adapting}.items():
    held_bytes = of_adapters(one_micro_batch, shape, config)
    print(f"{name:12}", ", ".join(f"{part} {n / 2**20:.2f}" for part, n in held_bytes.items()), "MiB")

# %% [markdown]
r"""
The functions of chapter 17c's dry run call these two. Each grows by a line, and the lines about epochs become a function, because a mixture has one for each folder.
"""


# %%
#| export labs.plan.dryrun
#| grows say_memory, least_seconds
def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a step keeps, by category, as if all numbers were float32."""
    parts = memory_by_category(shape, config.train.micro_batch, config.model.block_size)
    parts = of_adapters(parts, shape, config)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in parts.items())
    print(f"memory      {sum(parts.values()) / 1e9:.3f} GB with all in float32: {text}")


def least_seconds(shape: GPTConfig, config: Config, roof: Roofline) -> float:
    """What the device's roofline allows at least for a step: its micro-batches one after the other, and one update."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    parts = predict_step(shape, B, T, roof, name if name in roof.flops else "float32", fused=True)
    parts = frozen(parts, shape, config)
    update = parts["optimizer", "update"]
    return (sum(parts.values()) - update) * n + update


# %%
#| export labs.plan.dryrun
#| grows measured_seconds
def measured_seconds(shape: GPTConfig, config: Config, device: torch.device) -> float:
    """Of a step, measured with random tokens on at most two of its micro-batches."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    model, few, lora = GPT(shape).to(device), min(n, 2), config.lora
    if lora.rank:
        add_lora(model, lora.rank, lora.alpha, lora.targets)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return min(timings(call, device, 3)) * n / few


# %%
#| export labs.plan.dryrun
def say_epochs(config: Config) -> None:
    """Print how often the run reads each of its folders whose shards are there."""
    c, T = config, config.model.block_size
    weights = c.data.mix or {c.data.dir: 1}
    for folder, weight in weights.items():
        if not Path(folder, "manifest.json").exists():
            continue
        tokens = c.train.max_steps * c.train.batch_tokens * weight / sum(weights.values())
        train = load_manifest(folder)["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        where = f" in {folder}" if c.data.mix else ""
        print(f"epochs      {tokens / n:.2f} of {train[what]:,} {what}{where}")


# %%
#| export labs.plan.dryrun
#| grows dry_run
def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = shape_of(c, manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    assumed = "" if known or shape.vocab_size != guess else f", if the vocabulary has {guess:,}"
    numbers = adapter_numbers(shape, c)
    beside = f", and {numbers:,} in adapters, which alone are trained" if numbers else ""
    print(f"parameters  {num_params(shape):,}{assumed}{beside}")
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    say_epochs(c)
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))


# %%
say_epochs(Config(data=Data(dir=str(NEW), mix=mix), **sizes))  # six to one

# %% [markdown]
r"""
## Checkpoint

Exports `answers.py`, `adapters.py` and what has grown in `mixture.py` and `dryrun.py`, imports all of it in a fresh process, and runs the sitting's tests.
"""

# %% tags=["nbval-ignore-output"]
predictions("19c")

# %%
checkpoint("19c")

# %% [markdown]
r"""
## Exercises

`course exercises release 19` writes this one, and those of chapter 19, as a notebook to `released/`; `course check 19` runs their visible checks.

- **19-3** The answer, and its end, 20 minutes: fix a loss that never learns to stop.

To explore:

1. *A rate for adapters.* Run `answers.yaml` with `lora.rank=4` at three rates and two values of `run.seed`, and draw the six runs with `python -m nanogpt plot`. Check: the rate with the lowest validation loss on the answers; is it the one that forgets least?
2. *Another share.* Give the stories the weights 0, 1, 4 and 16 beside the questions' weight above (weight 0 means: no mixture). Check: both validation losses of each run in its last line. Where do you pay one nat for the other at the best price?
3. *An answer that never ends.* Let the mask of `in_answers` leave out the `<|endoftext|>`. Train, and sample from a held-out prompt with `sample`. Check: how many tokens does the model write behind the answer?
4. *A key of your own.* Add `data.last_tokens`, with which the last n tokens of each document count, and a lab for it in the table `LABS`. Check with the sitting's law: a loop by hand, and equal losses to the last bit.
5. *The forgotten place.* Let `load_state_dict` of `MixedStream` set the position to 0. Check: which line of "Killed" fails, and what does `python -m nanogpt compare` say?

## Further reading

- Hu et al. 2021, [*LoRA: Low-Rank Adaptation of Large Language Models*](https://arxiv.org/abs/2106.09685), §4: what is trained, and what a task's file holds.
- Ouyang et al. 2022, [*Training Language Models to Follow Instructions with Human Feedback*](https://arxiv.org/abs/2203.02155), §3.5 and appendix C: pretraining data mixed into fine-tuning, against forgetting.
- PEFT's documentation, [*Checkpoint format*](https://huggingface.co/docs/peft/developer_guides/checkpoint): the same folder of an adapter, in the library that most people use.
"""
