"""Keys that were given and would have no effect.

Exported from notebooks/17c_config.ipynb.
"""

from collections.abc import Iterable

from nanogpt.config import Config, is_default


def has_text(config: Config) -> bool:
    return config.data.source not in (None, "stories")


# Key: when it has an effect, and what it needs for that.
ACTS = {
    "data.val": (has_text, "a text in data.source"),
    "data.paragraphs": (has_text, "a text in data.source"),
    "data.tokenizer": (lambda c: c.data.source != "stories", "another data.source: stories have their own"),
    "optim.decay": (lambda c: c.optim.schedule == "wsd", "optim.schedule=wsd"),
    "optim.minimum": (lambda c: c.optim.schedule != "constant", "a schedule that falls"),
    "eval.tokens": (lambda c: c.eval.every > 0, "eval.every above 0"),
    "eval.prompt": (lambda c: c.eval.sample_every > 0, "eval.sample_every above 0"),
    "lora.alpha": (lambda c: c.lora.rank > 0, "lora.rank above 0"),
    "lora.targets": (lambda c: c.lora.rank > 0, "lora.rank above 0"),
    "model.padded_vocab_size": (lambda c: c.init_from is None, "a new model, not init_from's"),
}


def refuse_idle(config: Config, overrides: Iterable[str]) -> None:
    """ValueError for the first key of the command line that is not at its default, and has no effect."""
    for key in (override.partition("=")[0] for override in overrides):
        acts, needs = ACTS.get(key, (bool, ""))
        if not acts(config) and not is_default(config, key):
            raise ValueError(f"command line: {key} would have no effect; it needs {needs}")
