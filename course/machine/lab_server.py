"""What `course lab` adds to Jupyter's server: two lines in the terminal, and notebooks that do not answer before you have guessed."""

import ast

from course.predictions import ASKS

OPENED = "opened"  # in a notebook's own data: its outputs are the reader's from now on


def _load_jupyter_server_extension(app) -> None:
    app.log.addFilter(lambda record: "To access the server" not in record.getMessage())
    app.io_loop.add_callback(begin, app)  # when all extensions are loaded, and the address is known


async def begin(app) -> None:
    manager = app.contents_manager
    get = manager.get

    async def get_unanswered(*args, **kwargs):
        model = get(*args, **kwargs)
        model = await model if hasattr(model, "__await__") else model
        if model["type"] == "notebook" and model.get("content"):
            hide_outcomes(model["content"])
        return model

    manager.get = get_unanswered
    print(f"The course is open at {app.display_url.split()[0]}\nCtrl-C twice ends it.", flush=True)


def hide_outcomes(nb: dict) -> None:
    """Take the outputs of cells that answer a question without a guess, where the notebook is opened for the first time."""
    course = nb["metadata"].get("course")
    if course is None or course.get(OPENED):
        return
    course[OPENED] = True
    asks = next((found[1] for cell in nb["cells"] if (found := ASKS.search(text_of(cell)))), "predict")
    code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    calls = [(cell, call) for cell in code for call in calls_in(text_of(cell))]
    unanswered = {key_of(call) for _, call in calls if name_of(call) == asks and not has_guess(call)}
    for cell, call in calls:
        answers = name_of(call) == "answer" and key_of(call) in unanswered
        if answers or (name_of(call) == "predictions" and unanswered):
            cell["outputs"], cell["execution_count"] = [], None


def text_of(cell: dict) -> str:
    return "".join(cell["source"])


def calls_in(source: str) -> list[ast.Call]:
    try:
        return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except SyntaxError:  # a magic
        return []


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", "")


def key_of(call: ast.Call) -> object:
    return getattr(call.args[0], "value", None) if call.args else None


def has_guess(call: ast.Call) -> bool:
    given = [*call.args[2:3], *(word.value for word in call.keywords if word.arg == "guess")]
    return any(not (isinstance(value, ast.Constant) and value.value is None) for value in given)
