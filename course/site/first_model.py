"""`python -m course.site.first_model` (authors): chapter 07's model as a script, for the page that lets it write.

A page that is opened from a folder may load scripts and nothing else, so the weights are text: float16 in base64.
"""

import base64
import json

from course.files import write_atomically
from course.paths import BUILT, ROOT, CourseError, relative

MODEL, OUT = BUILT / "model", ROOT / "site" / "_static" / "first_model.js"
BEGIN, END = "window.firstModel = ", ";\n"


def as_script() -> str:
    """The model's configuration, tokenizer and weights, by their names in PyTorch; all for site/_static/writer.js."""
    from nanogpt.weights import load_model

    if not (MODEL / "tokenizer.json").exists():
        raise CourseError(f"there is no trained model in {relative(MODEL)}: course run 07")
    config, tokenizer = (
        json.loads((MODEL / f"{name}.json").read_bytes()) for name in ("config", "tokenizer")
    )
    weights = {
        name: base64.b64encode(p.detach().numpy().astype("<f2").tobytes()).decode()
        for name, p in load_model(MODEL).named_parameters()
    }
    return BEGIN + json.dumps({"config": config, "tokenizer": tokenizer, "weights": weights}, indent=1) + END


def main() -> int:
    write_atomically(OUT, as_script().encode())
    print(f"{relative(OUT)}: {OUT.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except CourseError as error:
        raise SystemExit(f"course: {error}") from None
