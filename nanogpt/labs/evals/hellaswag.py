"""HellaSwag: each context read once for its four endings, and which of them the model finds likeliest.

Exported from notebooks/18b_hellaswag.ipynb.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import nanogpt
from nanogpt import trainer
from nanogpt.config import hook
from nanogpt.evaluate import evaluating
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.model import GPT
from nanogpt.precision import autocast

COURSE = files("nanogpt") / "resources/hellaswag_course.jsonl"
REAL = Path(nanogpt.__file__).parents[1] / "data/downloads/hellaswag_val.jsonl"


def default_items() -> Path:
    """HellaSwag's validation set where `course data hellaswag` has brought it, else the course's small set."""
    return REAL if REAL.exists() else COURSE


def load_items(path: str | Path | None = None) -> list[dict]:
    """Questions of a HellaSwag file: each a dict with ctx, endings and label. None: those of default_items().

    ValueError, naming the line, for what is no question.
    """
    path, items = Path(path or default_items()), []
    # "\n" alone ends a line of JSONL: splitlines() would cut at U+2028, too, which a text may hold
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            label = float(item["label"])  # the hub's export has it as text
            whole = item["ctx"] and all(item["endings"]) and label in range(len(item["endings"]))
        except (ValueError, TypeError, LookupError):
            whole = False
        if not whole:
            raise ValueError(
                f"{path.name}, line {number}: a question needs ctx, endings, and label, one of theirs"
            )
        items.append(item | {"label": int(label)})
    if not items:
        raise ValueError(f"{path.name} holds no question")
    return items


def example_ids(item: dict, tokenizer) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, and of its endings, each after a space."""
    return tokenizer.encode(item["ctx"]), [tokenizer.encode(" " + ending) for ending in item["endings"]]


def fitting(context: list[int], endings: list[list[int]], block_size: int) -> list[int]:
    """What of a context fits before its longest ending, whose last token is predicted and not read.

    ValueError, which names both numbers, where not a single token fits.
    """
    room = block_size + 1 - max(map(len, endings))
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return context[-room:]


MEASURES = {  # what an ending's nats are divided by before the cheapest is chosen
    "acc": lambda ending, tokenizer: 1,
    "acc_norm": lambda ending, tokenizer: len(ending),
    "acc_bytes": lambda ending, tokenizer: len(ending.encode()),
    "acc_tokens": lambda ending, tokenizer: len(tokenizer.encode(" " + ending)),
}


@dataclass
class SideBySide:
    """A cache for one pass over texts that are each followed by several endings: all share the text's keys and values.

    ending, place: (B, T), which ending each token is of (-1: the text, -2: padding), and its position.
    at: where logits are wanted, indices into B · T.
    """

    ending: Tensor
    place: Tensor
    at: Tensor

    def positions(self, T: int) -> Tensor:
        keys, queries = self.ending[:, None, :], self.ending[:, :, None]
        self.seen = ((keys == -1) | (keys == queries)).tril()[:, None]  # (B, 1, T, T)
        return self.place

    def layer(self, i: int) -> Callable:
        return partial(F.scaled_dot_product_attention, attn_mask=self.seen)  # nothing is kept for a next pass

    def newest(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)[self.at][None]  # (1, wanted, C)


def side_by_side(context: list[int], endings: list[list[int]]) -> Tensor:
    """(T, 3): the context's tokens, and those of the endings that another one follows: id, ending, place."""
    rows = [(token, -1, place) for place, token in enumerate(context)]
    for number, ids in enumerate(endings):
        for i, token in enumerate(ids[:-1]):
            rows.append((token, number, len(context) + i))
    return torch.tensor(rows)


def predicted_at(context: list[int], endings: list[list[int]]) -> list[int]:
    """Where in that row each token of each ending is predicted: the first one at the context's end."""
    places, start = [], len(context)
    for ids in endings:
        places += [len(context) - 1, *range(start, start + len(ids) - 1)]
        start += len(ids) - 1
    return places


@torch.no_grad()
def score_endings(
    model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]
) -> list[list[float]]:
    """Of all endings in turn: what each costs after its context, in nats, and how many tokens are not first choice.

    contexts: ids of B texts, each read once; endings[b]: some lists of ids.
    """
    device, every = model.transformer.wte.weight.device, list(chain(*endings))
    rows = [side_by_side(*both) for both in zip(contexts, endings)]
    grid = pad_sequence(rows, batch_first=True, padding_value=-2).to(device)  # (B, T, 3)
    x, ending, place = grid.unbind(-1)
    at = [b * x.size(1) + i for b, both in enumerate(zip(contexts, endings)) for i in predicted_at(*both)]
    beside = SideBySide(ending, place.clamp(min=0), torch.tensor(at, device=device))
    y = torch.tensor(list(chain(*every)), device=device)
    logits = model(x.clamp(min=0), cache=beside)[0][0].float()  # (tokens, V)
    nats = F.cross_entropy(logits, y, reduction="none")
    first = logits.gather(
        1, first_choice(logits)[:, None]
    )  # refuses NaN, of which the first ending would be the cheapest
    wrong = (logits.gather(1, y[:, None]) < first)[:, 0]
    both = torch.stack([nats, wrong]).cpu()
    return [some.sum(1).tolist() for some in both.split([len(ids) for ids in every], dim=1)]


def abreast(endings: list[list[int]], room: int) -> list[list[list[int]]]:
    """The endings in groups that fit behind the context, `room` tokens each, the last of each ending not counted."""
    groups, left = [], -1
    for ids in endings:
        if len(ids) - 1 > left:
            groups, left = [*groups, []], room
        groups[-1].append(ids)
        left -= len(ids) - 1
    return groups


def score_ids(model: GPT, asked: Sequence[tuple], *, batch=8, precision="float32") -> list[list[list[float]]]:
    """For each (context's ids, endings' ids): of each ending, its nats and how many tokens are not first choice.

    batch: questions at once, of about one length; it changes only the time. Contexts are cut to what fits.
    """
    from tqdm import tqdm

    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    size, scores = model.config.block_size, {}
    cut = [(fitting(context, endings, size), endings) for context, endings in asked]
    pieces = [(i, c, some) for i, (c, endings) in enumerate(cut) for some in abreast(endings, size - len(c))]
    order = sorted(range(len(pieces)), key=lambda j: len(pieces[j][1]) + sum(map(len, pieces[j][2])))
    with evaluating(model) as device, autocast(precision, device):
        for at in tqdm(range(0, len(order), batch), unit="batch", desc="endings", disable=None):
            _, contexts, endings = zip(*(pieces[j] for j in order[at : at + batch]))
            flat = score_endings(model, contexts, endings)
            for j, some in zip(order[at:], endings):
                scores[j], flat = flat[: len(some)], flat[len(some) :]
    results = [[] for _ in asked]
    for j, (i, *_) in enumerate(pieces):
        results[i] += scores[j]
    return results


def score(model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32") -> list[list[float]]:
    """The nats of each question's endings."""
    asked = [example_ids(item, tokenizer) for item in items]
    return [[nats for nats, _ in some] for some in score_ids(model, asked, batch=batch, precision=precision)]


def accuracy(
    model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32"
) -> dict[str, float]:
    """The share of questions whose cheapest ending is the right one, by each measure, its standard error, and n.

    Keys: each NAME in MEASURES, NAME_stderr, which is the root of p (1 - p) / (n - 1) for a share p (/ 1 for a single
    question), and n, the number of questions.
    acc, acc_norm (per character) and acc_bytes are lm-evaluation-harness's names; acc_tokens, per token, is what
    build-nanogpt and llm.c call acc_norm.
    """
    nats, result = score(model, items, tokenizer, batch=batch, precision=precision), {"n": len(items)}
    for name, length in MEASURES.items():
        each = [
            [x / length(e, tokenizer) for x, e in zip(row, item["endings"])] for row, item in zip(nats, items)
        ]
        p = np.mean([np.argmin(row) == item["label"] for row, item in zip(each, items)]).item()
        result |= {name: p, f"{name}_stderr": (p * (1 - p) / max(1, len(items) - 1)) ** 0.5}
    return result


def score_hellaswag(run) -> dict:
    """The accuracies on HellaSwag, for the step's line."""
    model = hook(run.config, trainer.whole_model)(run)
    if model is None:  # another process has it
        return {}
    scores = accuracy(model, load_items(), run.tokenizer, precision=run.config.train.dtype)
    return {"hellaswag": scores["acc"], "hellaswag_norm": scores["acc_norm"]}


def attach(run) -> None:
    """Let a run answer HellaSwag's questions every eval.hellaswag_every steps. ValueError if it has no tokenizer."""
    if run.tokenizer is None:
        remedy = "name it in data.tokenizer, or set eval.hellaswag_every=0"
        raise ValueError(f"HellaSwag needs the tokenizer that made {run.config.data.dir}; {remedy}")
    run.looks.append((run.config.eval.hellaswag_every, score_hellaswag))


def log_likelihoods(model: GPT, requests: list, **how) -> list[tuple[float, bool]]:
    """Of each (text, context's ids, continuation's ids): its log-likelihood, and whether it is all first choice."""
    together: dict[tuple, list[int]] = {}  # requests of one context
    for i, (_, context, _) in enumerate(requests):
        together.setdefault(tuple(context), []).append(i)
    asked = [(list(context), [requests[i][2] for i in some]) for context, some in together.items()]
    found = dict.fromkeys(range(len(requests)))
    for some, scores in zip(together.values(), score_ids(model, asked, **how)):
        found.update({i: (-nats, wrong == 0) for i, (nats, wrong) in zip(some, scores)})
    return list(found.values())


def for_harness(model: GPT, tokenizer, *, batch=8, precision="float32"):
    """The model as an lm_eval.api.model.LM, for tasks that ask for log-likelihoods. Needs the package lm-eval."""
    from lm_eval.api.model import TemplateLM

    from nanogpt.evaluate import token_losses

    class Adapter(TemplateLM):
        eot_token_id = tokenizer.eot

        def tok_encode(self, string, add_special_tokens=None, **_):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **_):
            return log_likelihoods(model, requests, batch=batch, precision=precision)

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            texts = (np.array([tokenizer.eot, *tokenizer.encode(request.args[0])]) for request in requests)
            return [-token_losses(model, ids, tokenizer.eot, 1, precision).sum().item() for ids in texts]

        def generate_until(self, requests, disable_tqdm=False):
            raise NotImplementedError("the adapter scores texts; `python -m nanogpt sample` writes one")

    return Adapter()
