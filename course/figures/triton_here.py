"""What chapters 23 to 23d need around Triton: whether it is here, and what a kernel's programs ask of memory."""

import ast
import contextlib
import inspect
import linecache
import os
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

import torch
from IPython import get_ipython

from course.paths import SOURCES

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
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, about the nan that a wrong kernel loads
        yield seen


@contextlib.contextmanager
def without_warnings_of_cpp() -> Iterator[None]:
    """PyTorch's allocator warns, past Python, where a profile frees what was made before it."""
    kept = os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def released_text(kernel) -> str:
    """A kernel's text in its chapter's source; one that no chapter has is what it is."""
    for source in sorted(SOURCES.glob("23*.py")):
        text = source.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == kernel.__name__:
                return ast.get_source_segment(text, node)
    return textwrap.dedent(inspect.getsource(kernel.fn))


def altered(kernel, right: str, wrong: str):
    """The kernel with one place of its text changed, `right` into `wrong`, there or in a helper that it calls.

    Its text is the released one, whatever a student has written in its place.
    """
    import triton

    text = released_text(kernel)
    names = dict(kernel.fn.__globals__)
    if right not in text:
        helpers = [names.get(name) for name in kernel.fn.__code__.co_names]
        helpers = [x for x in helpers if isinstance(x, triton.JITFunction) and right in released_text(x)]
        if len(helpers) != 1:
            raise ValueError(
                f"{right!r} is in {len(helpers)} helpers of {kernel.__name__}; name a place in one"
            )
        names[helpers[0].__name__] = altered(helpers[0], right, wrong)
    elif text.count(right) != 1:
        raise ValueError(
            f"{kernel.__name__} has {right!r} {text.count(right)} times; name a place that is unique"
        )
    text = text[text.index("def ") :].replace(right, wrong)
    file = f"<{kernel.__name__}: {wrong}>"
    linecache.cache[file] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        file,
    )  # Triton reads a kernel's text
    exec(compile(text, file, "exec"), names)
    return triton.jit(names[kernel.fn.__name__])


def traced(function, *shapes: tuple[int, ...], inside: bool = False) -> list[str]:
    """The calls in the graph of `function` for tensors of these shapes on a GPU, which need not be there.

    inside: as torch.compile sees it behind its decompositions; a Triton kernel then appears under its own name.
    """
    from torch._functorch.aot_autograd import aot_function
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    pretended = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 80, 32))
    with FakeTensorMode(), mock.patch.object(driver, "_active", pretended):
        tensors = [torch.empty(shape, device="cuda") for shape in shapes]
        if inside:
            aot_function(function, fw_compiler=keep)(*tensors)
        else:
            graphs.append(make_fx(function, tracing_mode="fake")(*tensors))
    calls = []
    for node in graphs[0].graph.nodes:
        if "kernel_idx" in node.kwargs:
            calls.append(kernel_side_table.get_kernel(node.kwargs["kernel_idx"]).__name__)
        elif node.op == "call_function" and "getitem" not in str(node.target):
            calls.append(str(node.target).removesuffix(".default"))
    return calls
