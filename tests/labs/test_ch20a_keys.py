"""Laws of all keys, which a run reads or the lab that it asks for, and of all facts in which ranks must agree."""

import sys
from types import SimpleNamespace

import pytest

from nanogpt.config import LABS, Config, Data, Eval, Model, Optim, Run, Train, keys
from nanogpt.distributed import Ranks
from nanogpt.labs.parallel import agreement
from nanogpt.trainer import build_run, fit

SECTIONS = Model, Data, Optim, Train, Eval, Run


def test_every_key_is_read_by_a_run_or_by_a_lab(config, tmp_path, monkeypatch):
    """Who adds a key must use it: what nobody reads has no effect."""
    read = set()

    def recorded(self, name):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("nanogpt.") and caller != "nanogpt.config":
            read.add((type(self), name))
        return object.__getattribute__(self, name)

    for schedule in ("cosine", "wsd"):
        places = {"data_dir": str(tmp_path / "data"), "run_dir": str(tmp_path / schedule)}
        every = {"eval_every": 1, "eval_sample_every": 2, "train_max_steps": 2}
        asked = config(optim_schedule=schedule, **every, **places)
        with monkeypatch.context() as patch:
            for section in SECTIONS:
                patch.setattr(section, "__getattribute__", recorded)
            fit(build_run(asked))
    used = {f"{section.__name__.lower()}.{name}" for section, name in read}
    shape = {f"model.{name}" for name in vars(Model())}  # Model.shape hands them all to GPTConfig
    asked_of_labs = {key for key in keys() if key in LABS or key.partition(".")[0] in LABS}
    own = {"init_from", "lora.alpha", "lora.targets"}  # build.load_given; labs.tuning.adapters
    assert not keys().keys() - used - shape - asked_of_labs - own


@pytest.mark.parametrize("fact", ["configuration", "data", "code", "checkpoint"])
def test_ranks_that_would_do_different_runs_are_refused(fact, monkeypatch):
    """Rank 1 is made up here; chapter 20a's tests have a real one."""
    stream = SimpleNamespace(world_size=1, state_dict=dict)
    monkeypatch.setattr(agreement, "gathered", lambda ranks, facts: [facts, dict(facts)])
    agreement.refuse_other_runs(Ranks(), Config(), stream, "step_000004")
    monkeypatch.setattr(agreement, "gathered", lambda ranks, facts: [facts, facts | {fact: "another"}])
    with pytest.raises(ValueError, match=fact):
        agreement.refuse_other_runs(Ranks(), Config(), stream, "step_000004")
