# %% [markdown]
r"""
# 19c · Fine-tuning runs: adapters, mixtures and answers in the trainer

Chapters 19 and 19b fine-tuned a small model in a notebook, within seconds. A model that is worth the effort is larger, and its training takes a night. Then you want what chapter 17e built: a run that is a
file and a command, that validates itself, writes checkpoints, survives `kill -9`, and goes on. But that trainer knows one way to train. It trains all weights, it reads one folder, and every token counts. Fine-tuning changed
each of these three things:

| what fine-tuning changed | chapter | the trainer's new key | the function that decides it |
|---|---|---|---|
| small matrices are trained in place of all weights | 19 | `lora.rank` | `first_model` makes the model |
| some of the rows are of old text | 19 | `data.mix` | `batches_of` opens the data |
| only the answers count in the loss | 19b | `data.answers_after` | `begun` puts the run together |

This sitting adds the three keys, one after the other. The loop, the step and the log stay as they are. How do we know that a key does what a chapter's own loop did? We write that loop once more beside the trainer's run, and compare the losses of the two, step by step.

(You may skip this sitting. Later ones use the keys, but do not explain anything with them.)
"""

# %%
#| default_exp labs.tuning.answers
#| doc labs.tuning.answers: The loss on answers alone: which tokens belong to an answer, in training and in validation.
import os
import random
import shutil

from course.notebook import answer, checkpoint, grown, predict, predictions
from course.torchrun import so_far, so_far_killed
from nanogpt.config import load_config
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.prepare import prepare
from nanogpt.labs.long_run.assemble import held_out
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.long_run.trainer import fit
from nanogpt.labs.tuning.rewards import Question, questions, share_right
from nanogpt.metrics import read_metrics
from nanogpt.sampling import load
from nanogpt.shards import open_shards
from nanogpt.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train
from nanogpt.weights import load_model

# %%
#| export
import json
from collections.abc import Callable, Iterable
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
old_text = held_out(str(OLD), 5000)
results = {}


def measure(name: str, model) -> None:
    """Print the share of right answers, and the loss on old stories; keep them under a name."""
    right = share_right(model, held)["first"]
    old = evaluate(model, old_text, tokenizer.eot)
    results[name] = {"right": right, "old": old}
    print(f"{name}: {right:.0%} of {len(held)} answers are right; {old:.3f} nats a token on old stories")


# %% tags=["nbval-ignore-output"]
measure("before", base)

# %% [markdown]
r"""
## The run as it was

The run is a file (chapter 17c). It begins with chapter 07's model, it reads the questions, and its schedule is the one of chapter 07's `train`: no warm-up, and a fall at the end. The rate in the file is for adapters. The first run trains all weights, so it lowers the rate to 1e-3. (It calls `fit` in the notebook, and `[2:]` drops the words that only a shell needs.)
"""

# %%
(RUNS / "answers.yaml").write_text(f"""
init_from: {MODEL}
model: {{block_size: {T}}}
data: {{dir: {NEW}, tokenizer: {OLD}/tokenizer.json}}
optim: {{lr: {LR}, betas: [0.9, 0.98], weight_decay: 0.01, clip: null, schedule: wsd, minimum: 0.0}}
train: {{max_steps: {N}, batch_tokens: {B * T}, micro_batch: {B}}}
eval: {{every: {N}, tokens: 3000}}
run: {{checkpoint_every: 10, keep: 1, log_every: {N}, device: {device}}}
""")


def command(name: str, *changes: str) -> list[str]:
    """The words behind `python -m nanogpt`: the run in this file, in a folder of its own, with some keys changed."""
    return ["train", f"{RUNS}/answers.yaml", f"run.dir={RUNS}/{name}", *changes]


# %% tags=["nbval-ignore-output"]
_ = fit(load_config(f"{RUNS}/answers.yaml", command("all weights", "optim.lr=1e-3")[2:]))


# %% tags=["nbval-ignore-output"]
def look_at(name: str) -> None:
    """Measure a run's last model, and list the files of its checkpoint."""
    measure(name, load(str(RUNS / name))[0].to(device))
    for file in sorted((RUNS / name / f"step_{N:06d}").iterdir()):
        print(f"{file.stat().st_size / 2**10:8.0f} KiB  {file.name}")


look_at("all weights")

# %% [markdown]
r"""
This works with the trainer of chapter 17e. Look at three things, one for each key. The checkpoint has all weights and twice as many numbers of the optimizer. The loss on old stories has risen: the model forgets. And the loss that was printed is a mean over *all* tokens of the documents, of which the answers are
only a few.
"""

# %% [markdown]
r"""
## Adapters

The first key is a section of its own. At rank 0, the default, nothing changes. (The first of the next two cells imports the parts of the trainer that the functions of this sitting call.)
"""

# %%

from nanogpt.config import Config, Data, Lora, Model, Train, config_dict
from nanogpt.labs.long_run.assemble import tokenizer_of
from nanogpt.labs.long_run.given import given_model
from nanogpt.labs.long_run.log import say
from nanogpt.labs.long_run.training import Training
from nanogpt.lora import add_lora, lora_parameters
from nanogpt.model import GPTConfig
from nanogpt.shards import load_manifest
from nanogpt.training import scale_init


# %%
print(Lora(rank=RANK))

# %% [markdown]
r"""
`first_model` makes the model that a run starts with (chapter 17d). Now it also puts adapters into the model, if the run has some. Adapters need trained weights beside them, so a run without `init_from` is refused. The generator is seeded with the run's seed. It gives the adapters, or a new model, their first
numbers.
"""


# %%
#| export labs.long_run.assemble
from nanogpt.lora import add_lora, lora_parameters


# %%
#| export labs.long_run.assemble
#| grows first_model
#| blank first_model: begin with given_model where init_from is set, and add the adapters of config.lora if it has a rank
def first_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout and adapters, in float32, on the CPU."""
    lora, generator = config.lora, torch.Generator().manual_seed(config.run.seed)
    if config.init_from is not None:
        model = given_model(config, manifest)
        return add_lora(model, lora.rank, lora.alpha, lora.targets, generator) if lora.rank else model
    if lora.rank:
        raise ValueError(f"lora.rank={lora.rank} adapts trained weights; set init_from to their folder")
    shape = config.model.shape(manifest["vocab_size"])
    return scale_init(GPT(shape, generator))


# %%
sizes = {"model": Model(block_size=T), "train": Train(max_steps=N, micro_batch=B, batch_tokens=B * T)}
adapting = Config(data=Data(dir=str(NEW)), init_from=str(MODEL), lora=Lora(rank=RANK), **sizes)
model = first_model(adapting, manifest)
print(f"{sum(p.numel() for p in lora_parameters(model).values()):,} numbers are trained")
try:
    first_model(Config(lora=Lora(rank=RANK)), manifest)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The optimizer needs no change. Chapter 15's `make_optimizer` takes the parameters that are not frozen, and these are the adapters.

A checkpoint of such a run should keep the adapters alone, since the base is in `init_from` already. Then it is an adapter's folder as in chapter 19, which names its base, and `sample` and `eval` can read it. Chapter 19's `weights_writer` chooses the function that chapter 17b's `save` calls for the weights. (The trainer's `keep_run` passes it on: in the appendix.)
"""


# %%
from nanogpt.lora import weights_writer

weights_writer(adapting)(model, RUNS / "first")
print(*sorted(path.name for path in (RUNS / "first").iterdir()))

# %% [markdown]
r"""
When the run goes on, `take_weights` puts the numbers back. For adapters it calls chapter 19's `load_adapter`, which first compares a hash of the base. Suppose that somebody has trained the base further in the meantime. Without the check, the run would go on beside other weights, and no error would be raised. With it, `load_adapter` raises a ValueError.
"""


# %%
#| export labs.long_run.assemble
#| grows take_weights
from nanogpt.lora import load_adapter


def take_weights(run: Training, folder: Path) -> None:
    """Give the run's model, or its adapters, the weights of a checkpoint."""
    if lora_parameters(run.model):
        load_adapter(run.model, folder)
        return
    run.model.load_state_dict(load_model(folder).state_dict())


# %%
with torch.no_grad():
    model.transformer.ln_f.bias[3] += 1e-6
try:
    load_adapter(model, RUNS / "first")
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

The checkpoint is many times smaller. The weights of the base are not in it, and the optimizer keeps its two averages of the adapters alone.

## A mixture

Replay was the best remedy against forgetting in both chapters. In the trainer it is one key: `data.mix` gives each folder of shards a weight. With `{questions: 6, stories: 1}`, six rows of seven are questions. Chapter 16c's `MixedStream` does the work. Its proportions are exact, and its place in the data is one number, so a run goes on at the same row.
"""


# %% [markdown]
r"""
`data.dir` remains the folder whose validation loss is `val_loss`, by which the best checkpoint is chosen. So it must be in the mixture. And all folders must have been made with the same tokenizer: `open_shards` compares the fingerprints.

`batches_of` opens one stream or several. Its last two parameters say who reads which rows if several processes share a run; chapter 20a will use them.
"""


# %%
#| export labs.long_run.assemble
from nanogpt.labs.corpora.mixture import MixedStream


# %%
#| export labs.long_run.assemble
#| grows stream_of
#| blank batches_of: one stream of data.dir without a mixture; else a stream of B = 1 for each folder, in a MixedStream
def batches_of(config: Config, device: torch.device, rank: int = 0, world_size: int = 1) -> BatchStream:
    """Batches of data.dir's training shards, or of the folders of data.mix. ValueError where those cannot be mixed."""
    data, B = config.data, config.train.micro_batch
    kind = DocumentStream if data.documents else BatchStream
    how = {"T": config.model.block_size, "seed": config.run.seed, "device": device}
    if data.mix is None:
        return kind(open_shards(data.dir, "train"), B, rank=rank, world_size=world_size, **how)
    if data.dir not in data.mix:
        raise ValueError(f"data.mix gives data.dir={data.dir} no weight; it has {', '.join(data.mix)}")
    words = load_manifest(data.dir)["fingerprint"]
    streams = [kind(open_shards(folder, "train", words), 1, **how) for folder in data.mix]
    return MixedStream(streams, list(data.mix.values()), B, rank, world_size)


def stream_of(config: Config, device: torch.device) -> BatchStream:
    """The run's batches."""
    return batches_of(config, device)


# %%
mix = {str(NEW): 6, str(OLD): 1}
sevens = {"train": Train(micro_batch=7, batch_tokens=7 * T), "model": Model(block_size=T)}
seven, _ = batches_of(Config(data=Data(dir=str(NEW), mix=mix), **sevens), device).next_batch()
old_row = DocumentStream(open_shards(OLD, "train"), 1, T, seed=0, device=device).next_batch()[0][0]
print("of seven rows, from the old stories:", (seven == old_row).all(1).sum().item())

# %% [markdown]
r"""
The row is the first one of the old stories, as chapter 03's stream gives it. At each validation the log gets one loss for each folder: `val_loss` for `data.dir`, and `val_loss of FOLDER` for every other one. So you can watch two curves in one log: what is learned, and what is forgotten.

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

`only_answers` hides the other targets in every batch of a stream. The stream's place in the data and its state in a checkpoint stay what they were. If the first million tokens contain no marker at all, it is probably misspelled, so `only_answers` raises an error before the run starts.
"""


# %%
#| export
#| blank only_answers: replace the stream's next_batch by one that sets y to -100 where in_answers says no
def only_answers(stream: BatchStream, marker: list[int]) -> BatchStream:
    """The stream, in whose batches y is -100 outside of answers from now on.

    An answer whose marker is before its row does not count. ValueError if the first million tokens have none.
    """
    first, eot = torch.from_numpy(stream.tokens[0][:1_000_000].astype(np.int64))[None], stream.eot
    if not in_answers(first, marker, eot).any():
        raise ValueError("data.answers_after is nowhere in the training text; write it as it is there")
    all_targets = stream.next_batch

    def next_batch() -> tuple[Tensor, Tensor]:
        x, y = all_targets()
        ids = torch.cat([x[:, :1], y], 1)
        y[~in_answers(ids, marker, eot)[:, 1:]] = -100
        return x, y

    stream.next_batch = next_batch
    return stream


# %%
marker = tokenizer.encode("Answer:")
rows = DocumentStream(open_shards(NEW, "train"), B, T, seed=0, device=device)
x, y = only_answers(rows, marker).next_batch()
print(f"{(y != -100).sum().item()} of {y.numel()} targets count; in the first row:")
print([tokenizer.decode([i]) if i != tokenizer.eot else "<|endoftext|>" for i in y[0][y[0] != -100].tolist()])
logits = base(x)[0].detach().requires_grad_()
F.cross_entropy(logits.transpose(1, 2), y, ignore_index=-100).backward()
assert not logits.grad[y == -100].any(), "a hidden target has a gradient"

# %% [markdown]
r"""
No hidden target sends a gradient into the model.

In the trainer, `begun` of chapter 17d puts a run together. It knows the tokenizer, so it can turn the key's text into tokens, and it gives the stream to `only_answers`.

What if the run reads a mixture? The old stories are there so that they are not forgotten. They have no `Answer:`, so a mask on every row would hide all of them, and replay would do nothing. The key is therefore a property of `data.dir`: in its documents the answers alone count, and in the other folders all tokens do.
"""


# %%
from nanogpt.device import seed_everything
from nanogpt.precision import LossScaler


# %%
#| export labs.long_run.assemble
#| grows begun
def begun(config: Config, manifest: dict, model: GPT, stepper, optimizer, stream: BatchStream) -> Training:
    """A run of these parts, before its first step."""
    c, tokenizer = config, tokenizer_of(config.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        remedy = "name it in data.tokenizer, or set eval.sample_every=0"
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; {remedy}")
    if c.data.answers_after:
        own = stream.streams[list(c.data.mix).index(c.data.dir)] if c.data.mix else stream
        only_answers(own, marker_of(c.data, tokenizer))
    held = held_out(c.data.dir, c.eval.tokens) if c.eval.every else []
    stepper = torch.compile(stepper) if c.train.compile else stepper
    scaler = LossScaler() if c.train.dtype == "fp16" else None
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    device = next(model.parameters()).device
    return Training(c, device, tokenizer, (held, manifest["eot"]), model, stepper, optimizer, stream, scaler)


def marker_of(data: Data, tokenizer: BPETokenizer | None) -> list[int]:
    """The tokens that precede an answer. ValueError if the tokenizer of the shards is not known."""
    if tokenizer is None:
        raise ValueError(f"data.answers_after needs the tokenizer of {data.dir}; set data.tokenizer")
    return tokenizer.encode(data.answers_after)


# %%
assert marker_of(Data(answers_after="Answer:"), tokenizer) == marker, "the key gives other tokens"
grown("begun", "19c")

# %% [markdown]
r"""
The validation must measure what is trained. With this key, the validation loss is a mean over the answers, which `answer_loss` computes. (The function that chooses between the two losses is in the appendix.)
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
held_questions = held_out(str(NEW), 3000)
of_answers = answer_loss(base, held_questions, tokenizer.eot, marker=marker)
of_all = evaluate(base, held_questions, tokenizer.eot)
print(f"chapter 07's model on the new text: {of_all:.3f} nats a token, {of_answers:.3f} on the answers")

# %% [markdown]
r"""
Before the trainer runs, we ask the loop: what does the mask do to the model, without a mixture?

*Predict.* Chapter 07's model pays about 0.6 nats a token on old stories. How much will it be after these steps?
"""

# %%
predict("19c.2", "old stories, after training on answers alone", guess=None, unit="nats a token")

# %% tags=["nbval-ignore-output"]
answers_alone = only_answers(DocumentStream(open_shards(NEW, "train"), B, T, seed=0, device=device), marker)
measure("answers alone", by_hand(answers_alone)[0])
answer("19c.2", round(results["answers alone"]["old"], 2))

# %% [markdown]
r"""
More answers are right than after the runs before, but the model has forgotten how to tell stories. The documents consist mostly of story text, and in this run none of that text counted in the loss. So the mixture is needed here more than anywhere.

Which weights? The loss is a mean over all targets that count. We count those of a batch in which one row is a row of stories.
"""

# %%
of_questions = (y[: B - 1] != -100).sum().item()
print(f"{B - 1} rows of questions: {of_questions} targets; one row of stories: {T} targets")

# %% [markdown]
r"""
A single row of stories has more targets than all the answers of its batch together. So one in each batch is enough, and the weights are 7 and 1.

Now the three keys together. Beside the trainer's run we make the same stream by hand, and run the loop.
"""

# %% tags=["nbval-ignore-output"]
KEYS = [f"lora.rank={RANK}", f"data.mix={{{NEW}: {B - 1}, {OLD}: 1}}", "data.answers_after=Answer:"]
_ = so_far("19c", *command("all three", *KEYS))

# %%
parts = [DocumentStream(open_shards(folder, "train"), 1, T, seed=0, device=device) for folder in (NEW, OLD)]
_, ours = by_hand(MixedStream([only_answers(parts[0], marker), parts[1]], [B - 1, 1], B))
print(f"{N} losses, at most {apart('all three', ours):g} nats apart")

# %% tags=["nbval-ignore-output"]
look_at("all three")
for name, found in results.items():
    print(f"{name:14} {found['right']:5.0%} right, {found['old']:.3f} nats a token on old stories")

# %% [markdown]
r"""
The trainer is the loop again, to the last bit. Now compare the last two lines of the table. One row of stories in each batch has brought the loss on old stories back to nearly what it was before, and the model still answers about as many questions as after training on all tokens, or more. (With 120 questions the standard
error of a share is about three per cent, so small differences of the shares mean nothing.) Thirty steps are few. The table shows that the mixture brings the loss on old stories down. It does not show whether adapters forget less than all weights, since these runs differ in their rate. Chapter 19 compares the two ways at several rates.

## Killed

Does such a run go on, bit for bit? There are new things that a checkpoint can forget: the adapters, their averages in the optimizer, and the place in a mixture. We start the last run again in another folder, and end it by `kill -9` at a random moment within a random step. (`so_far_killed` waits until the run has written so many lines, then a fraction of a second.) Then the same command goes on.
"""

# %% tags=["nbval-ignore-output"]
dice = random.Random(0)
after, longer = dice.randint(N // 4, N - 3), dice.uniform(0, 0.05)
died = so_far_killed("19c", RUNS / "killed/metrics.jsonl", after, longer, *command("killed", *KEYS))
print(f"killed after {died} steps")
_ = so_far("19c", *command("killed", *KEYS))

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
With a mixture, the dry run has a line for each folder, which says how often the run reads it.

That is all. Each key changed one of the functions that put a run together. The checkpoint, the validation and the dry run had to follow, but the loop and the step did not change. On several processes they work as well, as the tests of chapter 20a show: each rank has its own rows of the mixture, and the mean over the answers is one over all ranks. Only a model that is cut into parts (chapter 21d) refuses adapters and answers, in one line.
"""

# %% [markdown]
r"""
## Appendix: the trainer's own functions

`keep_run` of chapter 17f passes the writer on to `save`.
"""


# %%
import math
from functools import partial
from dataclasses import replace

from nanogpt import optim
from nanogpt.checkpoint import save
from nanogpt.labs.plan.dryrun import measure_roofline, say_time, shape_of, step_seconds
from nanogpt.model import num_params
from nanogpt.precision import READS
from nanogpt.roofline import Roofline, memory_by_category, predict_step, timings
from nanogpt.training import train_step

# %%
#| export labs.long_run.trainer
#| grows keep_run
import os

from nanogpt.lora import weights_writer


def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept != folder:
        os.fsync(metrics.fileno())
        write = weights_writer(run.config)
        save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer, write)
        run.kept = folder


# %%
saved = save(RUNS / "appendix", 1, model, {"config": config_dict(adapting)}, write=weights_writer(adapting))
print(*sorted(path.name for path in saved.iterdir()))

# %% [markdown]
r"""
When a validation is due, the loop calls `validate` of chapter 17e. It asks `measured_loss`, which chooses between `evaluate` and `answer_loss` by the key `data.answers_after`. It also evaluates the other folders of a mixture, on all of their tokens.
"""


# %%
#| export labs.long_run.looks
from nanogpt.labs.long_run.assemble import held_out
from nanogpt.labs.long_run.log import say


# %%
#| export labs.long_run.looks
#| grows validate
def measured_loss(run: Training, model: GPT, evaluate: Callable) -> tuple[float, dict]:
    """The validation loss, by `evaluate` or of answers alone; and for the step's line the floor, and the loss of each
    other folder of a mixture. Answers alone have no floor.
    """
    data, (held, eot), dtype = run.config.data, run.held, run.config.train.dtype
    found = {key: value for key, value in load_manifest(data.dir).items() if key == "floor"}
    for folder in [folder for folder in data.mix or () if folder != data.dir]:
        loss = evaluate(model, held_out(folder, run.config.eval.tokens), eot, precision=dtype)
        found[f"val_loss of {folder}"] = loss
        say(f"val loss {loss:.4f} of {folder}")
    if not data.answers_after:
        return evaluate(model, held, eot, precision=dtype), found
    found.pop("floor", None)
    return answer_loss(model, held, eot, dtype, marker=marker_of(data, run.tokenizer)), found


def validate(run: Training, model: GPT) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best."""
    loss, more = measured_loss(run, model, evaluate)
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    return {"val_loss": loss} | more  # for `plot`


# %% [markdown]
r"""
`value_of` belongs to the comparison of two configurations (chapter 17d). A run that began before this sitting has no key `lora.rank` in its checkpoint, and the default takes its place. And the line with which a run introduces itself says how many numbers are in adapters, and which folders are mixed.
"""


# %%
#| export labs.long_run.assemble
#| grows value_of
def value_of(config: dict, key: str):
    """What a configuration, as a dictionary, has under a key with dots; the default if it is older than the key."""
    section, _, name = key.rpartition(".")
    for known in (config, config_dict(Config())):
        inner = known.get(section, {}) if section else known
        if name in inner:
            return inner[name]


# %%
print("an old configuration has lora.rank:", value_of({"model": {}}, "lora.rank"))


# %%
#| export labs.long_run.log
#| grows introduce
from nanogpt.lora import lora_parameters


def introduce(training: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    c, train = training.config, training.config.train
    tokens = f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {train.max_steps * train.batch_tokens:,} in all"
    what = f"{num_params(training.model.config):,} parameters in {train.dtype} on {training.device}"
    if adapters := lora_parameters(training.model):
        what = f"{sum(p.numel() for p in adapters.values()):,} in adapters beside {what}"
    began = f"goes on after step {training.step}" if training.step else "a new run"
    say(f"{c.run.dir}: {began}; {what}; {tokens}, from {c.data.mix or c.data.dir}")


# %% [markdown]
r"""
## Appendix: the dry run of adapters and mixtures

`adapter_numbers` counts by making the model on the device `meta`, which needs no memory. A rank that a layer cannot have is refused here as well. `of_adapters` corrects the memory and `frozen` the seconds of a step; both leave a run without adapters as it was. A layer's backward pass consists of two products of equal size: one gives the gradient
of the input, the other the gradient of the weight. The second is left out. In the first block `qkv` needs neither, since nothing before it is trained.
"""


# %%
#| export labs.plan.dryrun
from nanogpt.lora import add_lora, lora_parameters


def adapter_numbers(shape: GPTConfig, config: Config) -> int:
    """How many numbers the adapters of a run have; 0 if it has none. ValueError for adapters that cannot be."""
    lora = config.lora
    if not lora.rank:
        return 0
    with torch.device("meta"):
        model = add_lora(GPT(shape), lora.rank, lora.alpha, lora.targets)
    return sum(p.numel() for p in lora_parameters(model).values())


# %%
#| export labs.plan.dryrun
def of_adapters(held: dict[str, float], shape: GPTConfig, config: Config) -> dict[str, float]:
    """Bytes by category, of all weights, corrected for a run that trains adapters alone: they have the gradients and averages."""
    numbers, P = adapter_numbers(shape, config), num_params(shape)
    if not numbers:
        return held
    states = [name for name in ("gradients", "optimizer", "moments", "masters") if name in held]
    few = {name: held[name] * numbers / P for name in states}
    return held | few | {"parameters": held["parameters"] * (P + numbers) / P}


def frozen(parts: dict[tuple, float], shape: GPTConfig, config: Config) -> dict[tuple, float]:
    """Seconds by part and phase, corrected for frozen matrices: they need no gradient, and no update."""
    numbers, L = adapter_numbers(shape, config), shape.n_layer
    if not numbers:
        return parts
    shares = {("qkv", "backward"): (L - 1) / (2 * L), ("embedding", "backward"): 0.0}
    shares |= {(part, "backward"): 0.5 for part in ("proj", "mlp", "head")}
    shares["optimizer", "update"] = numbers / num_params(shape)
    return {key: seconds * shares.get(key, 1.0) for key, seconds in parts.items()}


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

Exports `answers.py` and what has grown in the trainer, imports all of it in a fresh process, and runs the sitting's tests.
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
4. *A key of your own.* Add `data.last_tokens`, with which the last n tokens of each document count. Check with the sitting's law: a loop by hand, and equal losses to the last bit.
5. *The forgotten place.* Let `load_state_dict` of `MixedStream` set the position to 0. Check: which line of "Killed" fails, and what does `python -m nanogpt compare` say?

## Further reading

- Hu et al. 2021, *LoRA: Low-Rank Adaptation of Large Language Models*, §4: what is trained, and what a task's file holds.
- Ouyang et al. 2022, *Training Language Models to Follow Instructions with Human Feedback*, §3.5 and appendix C: pretraining data mixed into fine-tuning, against forgetting.
- PEFT's documentation, *Checkpoint format*: the same folder of an adapter, in the library that most people use.
"""
