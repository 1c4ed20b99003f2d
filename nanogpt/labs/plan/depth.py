"""Everything about a model from the number of its layers.

Exported from notebooks/17c_config.ipynb.
"""

import math


def from_depth(n: int, batch_tokens: int) -> list[str]:
    """Overrides for n layers, as nanochat's one dial (scripts/base_train.py), with GPT-2's heads of 64; 12 is GPT-2 small.

    The width is 64 n. The rate is GPT-3's 6e-4 for 768 (Brown et al. 2020, table 2.1) times 768 / width (Yang et al.
    2022). The steps, rounded up, make 20 tokens for each of the layers' 12 n width² parameters (Hoffmann et al. 2022).
    Five texts such as "model.n_layer=4": n_layer, n_embd, n_head, optim.lr, train.max_steps. ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"--depth {n} is the number of layers, at least 1")
    width = 64 * n
    shape = [f"model.n_layer={n}", f"model.n_embd={width}", f"model.n_head={n}"]
    steps = math.ceil(20 * 12 * n * width**2 / batch_tokens)
    return [*shape, f"optim.lr={6e-4 * 768 / width:.6g}", f"train.max_steps={steps}"]
