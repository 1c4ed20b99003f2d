"""The lines of a run for TensorBoard: the key run.tensorboard.

Exported from notebooks/17f_killed_run.ipynb.
"""


def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def attach(run) -> None:
    """Write each line for TensorBoard, too."""
    board = None

    def write(line: dict) -> None:
        nonlocal board
        if board is None:
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(run.folder / "tensorboard", purge_step=line["step"])
        for name, value in numbers(line).items():
            board.add_scalar(name, value, line["step"])
        board.flush()

    run.writers.append(write)
