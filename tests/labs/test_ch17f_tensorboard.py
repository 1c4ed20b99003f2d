"""The log for TensorBoard: what a run that goes on makes again takes the place of what is there."""

import sys
from types import SimpleNamespace

from nanogpt.labs.long_run.tensorboard import attach


def test_a_run_that_goes_on_purges_the_steps_that_it_makes_again(monkeypatch, tmp_path):
    made, drawn = [], []

    def writer(folder, purge_step):
        made.append(purge_step)
        return SimpleNamespace(add_scalar=lambda *point: drawn.append(point), flush=lambda: None)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    attach(run := SimpleNamespace(folder=tmp_path, writers=[]))
    for step in (7, 8):
        run.writers[0]({"step": step, "loss": 0.5, "skipped": "a spike"})
    assert made == [7] and drawn == [(n, v, s) for s in (7, 8) for n, v in (("step", s), ("loss", 0.5))]
