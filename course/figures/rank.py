"""One rank of `course.figures.processes`. Nothing is imported above that a rank does not need: it starts in seconds."""

import contextlib
import importlib
import io
import os
import sys
from multiprocessing.connection import Connection


def serve(orders: Connection, folder: str, module: str, environment: dict[str, str], log: str) -> None:
    """Call what each order names, and answer with what it returned or raised, and what it printed; until nobody is there.

    folder: of the package; module: of nanogpt.labs, whose functions are called; log: for what PyTorch itself says.
    """
    os.environ |= environment
    sys.path.insert(0, folder)
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    import torch

    from nanogpt.distributed import let_go, process_group, torchrun_ranks

    modules = map(importlib.import_module, ("course.figures.data_parallel", f"nanogpt.labs.{module}"))
    functions = {name: thing for module in modules for name, thing in vars(module).items()}
    torch.set_num_threads(1)
    ranks = torchrun_ranks()
    while True:
        try:
            function, args, seconds = orders.recv()
        except EOFError:  # the notebook has ended
            return
        answer, printed = {}, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), process_group(ranks, seconds):
                answer["found"] = functions[function](ranks, *args)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        let_go()
        orders.send(answer | {"printed": printed.getvalue()})
