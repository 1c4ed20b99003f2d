"""What a run with adapters writes into its checkpoints.

Exported from notebooks/19_fine_tuning.ipynb.
"""

from collections.abc import Callable
from functools import partial

from nanogpt.config import Config
from nanogpt.lora import save_adapter
from nanogpt.weights import save_model


def weights_writer(config: Config) -> Callable:
    """What writes the weights of a checkpoint: of a run with adapters these alone, and where their base is."""
    return partial(save_adapter, base_model=config.init_from) if config.lora.rank else save_model
