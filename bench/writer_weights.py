"""Chapter 07's model as a script, for the page that lets it write: `course run 07 && python bench/writer_weights.py`.

A page that is opened from a folder may load scripts and nothing else, so the weights are text: float16 in base64.
"""

import base64
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from course.files import write_atomically  # noqa: E402
from course.paths import BUILT, relative  # noqa: E402

MODEL, OUT = BUILT / "model", ROOT / "site" / "_static" / "first_model.js"
BEGIN, END = "window.firstModel = ", ";\n"


def as_script() -> str:
    """The model's configuration, tokenizer and weights, by their names in PyTorch; all for site/_static/writer.js."""
    from nanogpt.weights import load_model

    if not (MODEL / "tokenizer.json").exists():
        raise SystemExit(f"there is no trained model in {relative(MODEL)}: course run 07")
    config, tokenizer = (
        json.loads((MODEL / f"{name}.json").read_bytes()) for name in ("config", "tokenizer")
    )
    weights = {
        name: base64.b64encode(p.detach().numpy().astype("<f2").tobytes()).decode()
        for name, p in load_model(MODEL).named_parameters()
    }
    return BEGIN + json.dumps({"config": config, "tokenizer": tokenizer, "weights": weights}, indent=1) + END


if __name__ == "__main__":
    write_atomically(OUT, as_script().encode())
    print(f"{relative(OUT)}: {OUT.stat().st_size / 1e6:.2f} MB")
