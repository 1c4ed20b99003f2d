"""What chapter 23 needs around Triton: whether it is here, and what a kernel's programs ask of memory."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from unittest import mock

from IPython import get_ipython

MARK = "# needs Triton"
INSTALL = "on Linux, `pip install triton` brings it (691 MB)"


def skip_cells_without_triton() -> None:
    """Where Triton is not installed, cells that begin with MARK only say so from now on, and count as run."""
    if find_spec("triton"):
        import triton

        print(f"Triton {triton.__version__}: every cell of this chapter runs here")
        return
    print(f"Triton is not installed here; {INSTALL}. Until then this chapter is for reading:")
    print("cells that need Triton are skipped, and the outputs of the stored notebook show what they print.")
    transformers = get_ipython().input_transformers_post
    if skipped not in transformers:
        transformers.append(skipped)


def skipped(lines: list[str]) -> list[str]:
    """A cell's lines; for one that begins with MARK, a line that says why it is skipped."""
    if not lines or not lines[0].startswith(MARK):
        return lines
    return [f"print({f'skipped: Triton is not installed here; {INSTALL}'!r})\n"]


@dataclass
class Seen:
    """What a kernel's programs asked of memory: bytes loaded and stored, and addresses that two programs stored to."""

    loaded: int = 0
    stored: int = 0
    writer: dict[int, tuple] = field(default_factory=dict)  # address -> the program that stored there last
    shared: set[int] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        return self.loaded + self.stored


@contextlib.contextmanager
def watch() -> Iterator[Seen]:
    """Counts the loads and stores of all kernels that Triton's interpreter runs meanwhile; masked ones do not count."""
    from triton.runtime.interpreter import InterpreterBuilder

    seen = Seen()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def watched_load(self, pointers, mask, *rest):
        found = load(self, pointers, mask, *rest)
        seen.loaded += int(mask.data.sum()) * found.data.itemsize
        return found

    def watched_store(self, pointers, value, mask, *rest):
        width = pointers.get_element_ty().primitive_bitwidth // 8
        addresses = pointers.data[mask.data].ravel().tolist()
        seen.stored += len(addresses) * width
        program = tuple(self.grid_idx)
        seen.shared.update(at for at in addresses if seen.writer.get(at, program) != program)
        seen.writer.update(dict.fromkeys(addresses, program))
        return store(self, pointers, value, mask, *rest)

    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", watched_load),
        mock.patch.object(InterpreterBuilder, "create_masked_store", watched_store),
    ):
        yield seen
