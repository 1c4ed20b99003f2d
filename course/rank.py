"""One rank of `course.processes`: it reads what to call, a line an order, and answers with a line.

python -m course.rank MODULE PREFIX       functions of nanogpt.labs.MODULE; answers begin with PREFIX
"""

import importlib
import json
import sys

import torch


def main() -> None:
    from nanogpt.distributed import let_go, process_group, torchrun_ranks

    modules = [
        importlib.import_module(name) for name in ("course.data_parallel", f"nanogpt.labs.{sys.argv[1]}")
    ]
    functions = {name: thing for module in modules for name, thing in vars(module).items()}
    torch.set_num_threads(1)
    ranks = torchrun_ranks()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            with process_group(ranks, order["seconds"]):
                told = {"found": functions[order["call"]](ranks, *order["args"])}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        let_go()
        print(sys.argv[2] + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
