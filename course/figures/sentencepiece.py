"""Chapter 24c's comparison with the library that the format comes from."""

import importlib.util
from pathlib import Path


def compared_with_library(model, path: Path, texts: list[str]) -> str:
    """Whether SentencePiece gives the same ids and the same text back as `model`, which was read from the same file."""
    if not importlib.util.find_spec("sentencepiece"):
        return "sentencepiece is not installed here: pip install sentencepiece, then run this cell again"
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in texts:
        ids = theirs.encode(text)
        if ids != model.encode(text):
            return f"other ids for {text[:40]!r}: {ids[:12]}, not {model.encode(text)[:12]}"
        if theirs.decode(ids) != model.decode(ids):
            return f"another text for {ids[:12]}: {theirs.decode(ids)!r}, not {model.decode(ids)!r}"
    return f"the same ids and texts as sentencepiece {sentencepiece.__version__}, {len(texts)} texts"
