"""A model as lm-evaluation-harness wants it.

Exported from notebooks/18b_hellaswag.ipynb.
"""

import numpy as np

from nanogpt.evals.hellaswag import score_ids
from nanogpt.evals.losses import token_losses
from nanogpt.gpt.model import GPT


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
