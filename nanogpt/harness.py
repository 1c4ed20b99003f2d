"""A model as lm-evaluation-harness wants it.

Exported from notebooks/18_evaluation.ipynb.
"""

import numpy as np

from nanogpt.evals import token_losses
from nanogpt.hellaswag import score_ids
from nanogpt.model import GPT


def for_harness(model: GPT, tokenizer, *, batch=8, precision="float32"):
    """The model as an lm_eval.api.model.LM: lm_eval.simple_evaluate(model=for_harness(model, tokenizer), tasks=[…]).

    Answers tasks that ask for log-likelihoods. Needs the package lm-eval.
    """
    from lm_eval.api.model import TemplateLM

    class Adapter(TemplateLM):
        eot_token_id = tokenizer.eot

        def tok_encode(self, string, add_special_tokens=None, **_):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **_):
            together: dict[tuple, list[int]] = {}  # requests of one context
            for i, (_, context, _) in enumerate(requests):
                together.setdefault(tuple(context), []).append(i)
            asked = [(list(c), [requests[i][2] for i in some]) for c, some in together.items()]
            results = zip(together.values(), score_ids(model, asked, batch=batch, precision=precision))
            found = {
                i: (-nats, wrong == 0) for some, scores in results for i, (nats, wrong) in zip(some, scores)
            }
            return [found[i] for i in range(len(requests))]

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            ids = [np.array([tokenizer.eot, *tokenizer.encode(request.args[0])]) for request in requests]
            return [
                -token_losses(model, some, tokenizer.eot, precision=precision).sum().item() for some in ids
            ]

        def generate_until(self, requests, disable_tqdm=False):
            raise NotImplementedError(
                "this adapter gives log-likelihoods; `python -m nanogpt sample` writes text"
            )

    return Adapter()
