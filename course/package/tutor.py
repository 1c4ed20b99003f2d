"""What a tutor knows of a chapter's blanks, in notebooks/src/04_attention.toml beside 04_attention.py:

    [attention_weights]
    minutes = 10
    note = "What nobody can guess: an API, a form. (Not every blank has one.)"
    hint = "A second hint, after the one of `#| blank`."
    probe = '''
    q, k = torch.randn(2, 3, 4)
    return {"the first row": attention_weights(q, k)[0]}
    '''
    right = '''A body that somebody has written from the chapter's text alone.'''

    [[attention_weights.wrong]]
    say = "What a tutor says to somebody who has written `to` in place of `of`."
    of = "/ math.sqrt(d)"
    to = "/ d"

`check` looks at a student's function through the probe. Where it differs from ours it says what was expected and what came,
and if one of the wrong bodies does the same, what the tutor says.
"""

import contextlib
import io
import itertools
import linecache
import textwrap
import tomllib
import traceback
import warnings
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from course.package.blank import TURN, body_lines
from course.package.cells import ExportedCell, exported_cells, functions
from course.paths import SOURCES, CourseError, number_of, numbered, source_path
from course.states.released import exporting_cells

NUMBERS = itertools.count(1)  # of the pieces of code that were made here
RELATIVE, ABSOLUTE = 2e-5, 1e-6  # the rounding of float32
SHOWN = 12  # numbers of an array, at most


@dataclass
class Blank:
    minutes: int
    hint: str
    probe: str
    right: str
    note: str = ""  # what nobody can guess, and the docstring does not need to say
    wrong: list[dict[str, str]] = field(default_factory=list)

    def wrong_bodies(self) -> list[tuple[str, str]]:
        """What is said, and the body that it is said to."""
        return [(each["say"], self.right.replace(each["of"], each["to"], 1)) for each in self.wrong]


class NotRight(CourseError):
    """A blank's body does something else than it should."""


@dataclass(frozen=True)
class Raised:
    """What a probe met instead of a value, and the line of the student's that it came from."""

    error: str
    line: str = field(default="", compare=False)


@cache
def blanks_of(chapter: str) -> dict[str, Blank]:
    path = next((path for path in numbered(SOURCES, ".toml") if number_of(path) == chapter), None)
    if path is None:
        return {}
    return {name: Blank(**fields) for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def check(chapter: str, name: str, namespace: dict) -> None:
    """Print that a student's function does what it should; else NotRight, which says what it does instead."""
    blank, cell = blanks_of(chapter)[name], cell_of(chapter, name)
    got = probed(blank, namespace)
    should = with_body(cell, name, None, blank, namespace)
    if "" in should:  # a cell above has not been run, or this machine lacks what is tried
        print(f"{name} cannot be tried here ({should[''].error}); have all cells above been run?")
        return
    if same(should, got):
        print(f"{name}: right")
        return
    made = [(say, with_body(cell, name, body, blank, namespace)) for say, body in blank.wrong_bodies()]
    said = [f"{name}: {difference(should, got)}", sentence(made, should, got)]
    raise NotRight("\n".join(filter(None, said)))


def sentence(made: list[tuple[str, dict]], should: dict, got: dict) -> str:
    """What is said to the wrong body that does the same; else to one that does the same at the first place that differs."""
    first = differing(should, got)
    says = [say for say, found in made if same(found, got)]
    says += [say for say, found in made if first in found and alike(found[first], got.get(first))]
    return says[0] if says else ""


def cell_of(chapter: str, name: str) -> ExportedCell:
    cells = exported_cells(exporting_cells(chapter), source_path(chapter).name)
    return next(cell for cell in cells if name in cell.blanks)


def with_body(cell: ExportedCell, name: str, body: str | None, blank: Blank, namespace: dict) -> dict:
    """What the probe finds while the released cell stands in the namespace, with this body if there is one."""
    before = dict(namespace)
    try:
        run(cell.source if body is None else filled(cell, name, body), namespace)
        return probed(blank, namespace)
    finally:
        for key in namespace.keys() - before.keys():
            del namespace[key]
        namespace |= before


def filled(cell: ExportedCell, name: str, body: str) -> str:
    """The cell's text with another body in one of its functions."""
    lines = cell.source.split("\n")
    node = dict(functions(cell.tree))[name]
    begin, end = body_lines(node, lines, f"{cell.where}: {name}")
    lines[begin:end] = [textwrap.indent(textwrap.dedent(body).strip("\n"), " " * node.body[-1].col_offset)]
    return "\n".join(lines)


def probed(blank: Blank, namespace: dict) -> dict:
    """What the probe returns, by its places, or what it raises. Random numbers are the same each time."""
    import torch

    try:
        made: dict = {}  # the probe is no name of the student's
        run("def probe(error_of):\n" + textwrap.indent(blank.probe, "    "), namespace, made)
        with (
            torch.random.fork_rng(devices=[]),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            torch.manual_seed(0)
            found = made["probe"](error_of)
        return {place: leaf for what, value in found.items() for place, leaf in leaves(value, what).items()}
    except Exception as error:
        if str(error).startswith(TURN):
            raise
        return {"": raised(error)}


def error_of(call, names: str = "") -> str:
    """`ValueError`, of a call that raises one, for a probe; and whether it names what it should."""
    try:
        call()
    except Exception as error:
        if str(error).startswith(TURN):
            raise
        return type(error).__name__ + ("" if names in str(error) else f" that does not name {names}")
    return "no error"


def raised(error: Exception) -> Raised:
    said = " ".join((str(error).strip() or "without a word").split())[:200]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    lines = [frame.line for frame in frames if frame.line and "site-packages" not in frame.filename]
    return Raised(f"{type(error).__name__}: {said}", lines[-1] if lines else "")


def run(text: str, namespace: dict, into: dict | None = None) -> None:
    """Execute code whose lines can be looked up, as Triton does with a kernel's. into: where new names go, if not there."""
    name = f"<tutor {next(NUMBERS)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), namespace, into)


def leaves(value, place: str) -> dict:
    """What a value is made of, by its place in it, `the first row[0]['loss']`: numbers of any kind as arrays, double precision."""
    import torch

    if isinstance(value, dict | list | tuple):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        found = {f"the length of {place}": np.asarray(len(value))}
        for key, member in members:
            found |= leaves(member, f"{place}[{key!r}]")
        return found
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return {place: np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float) else value}


def same(one: dict, other: dict) -> bool:
    """Whether two probes have found the same, numbers up to the rounding of float32."""
    return differing(one, other) is None


def differing(one: dict, other: dict) -> str | None:
    """The first place where two probes' findings differ."""
    return next((place for place in one | other if not alike(one.get(place), other.get(place))), None)


def alike(one, other) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.all(close(one, other)))
    return type(one) is type(other) and bool(one == other)


def close(one, other):
    return np.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)


def difference(should: dict, got: dict) -> str:
    """The first thing that differs: what it should be, and what it is; of a large array the first such number."""
    if "" in got:
        return f"it raises {got[''].error}" + (f" at `{got[''].line}`" if got[""].line else "")
    what = differing(should, got)
    one, other = should.get(what), got.get(what)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape:
            return f"{what} should have the shape {one.shape}, and has {other.shape}"
        if one.size > SHOWN:
            at = tuple(int(i) for i in np.argwhere(~close(one, other))[0])
            what, one, other = f"{what}{list(at)}", one[at], other[at]
    return f"{what} should be {shown(one)}, and is {shown(other)}"


def shown(value) -> str:
    """A value in a few words; long tensors by their shape."""

    if isinstance(value, Raised):
        return f"an error ({value.error})"
    if isinstance(value, np.ndarray | np.generic):
        return f"of shape {value.shape}" if value.size > SHOWN else shown(value.tolist())
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
