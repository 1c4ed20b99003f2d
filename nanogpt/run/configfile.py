"""A YAML file as plain data: numbers as people write them, no key twice, each error one line.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17e_long_run.ipynb.
"""

import difflib
import inspect
import json
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

import nanogpt

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"  # PyYAML's names for two kinds
EXPONENT = FLOAT, re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers  # for each first character: kinds with their patterns


def integer(loader: yaml.SafeLoader, node: yaml.Node) -> int | str:
    """An integer to base ten, 0100 too. What else YAML 1.1 takes for an integer, as 2:00:00, stays text."""
    digits = node.value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else node.value


def decimal(loader: yaml.SafeLoader, node: yaml.Node) -> float | str:
    """A number with a dot or an exponent. With a colon, as 2:00:00.5, it stays text."""
    return node.value if ":" in node.value else yaml.SafeLoader.construct_yaml_float(loader, node)


class Loader(yaml.SafeLoader):
    """YAML as people mean it: 6e-4 is a number, 0100 is a hundred, a key is there once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [EXPONENT, *USUAL[first]] for first in "+-0123456789"}

    yaml_constructors = yaml.SafeLoader.yaml_constructors | {INT: integer, FLOAT: decimal}

    def construct_mapping(self, node, deep=False):
        names = [str(key.value) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(problem=f"{name} is there twice", problem_mark=node.start_mark)
        return yaml.SafeLoader.construct_mapping(self, node, deep)


def parsed(text: str, where: str) -> Any:
    """The data in a YAML text. ValueError in one line if it is not YAML."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where}{line}: {problem or error}") from None


CONFIGS = Path(nanogpt.__file__).resolve().parents[1] / "configs"


def read_config(name_or_path: str | Path) -> tuple[dict, str]:
    """What a YAML file says, or configs/NAME.yaml, found from any folder; and what to call it."""
    path = Path(name_or_path)
    if named := not path.suffix and len(path.parts) == 1:
        path = CONFIGS / f"{path}.yaml"
    where = f"configs/{path.name}" if named else str(path)
    try:
        given = parsed(path.read_text(encoding="utf-8"), where) or {}
    except UnicodeDecodeError:
        raise ValueError(f"{where}: is no text in UTF-8") from None
    except FileNotFoundError:
        ready = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
        raise FileNotFoundError(f"{where} is not there; ready are {ready}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{where}: holds no keys; a line of it reads `train: {{max_steps: 100}}`")
    return given, where


def complaint(error: ValidationError, given: dict, known: Collection[str]) -> tuple[str, str]:
    """Of all known keys, the first that is wrong, or "" where it is several together; and a sentence."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "value_error":
        return "", ".".join([*place, str(first["ctx"]["error"])])
    key = place[0] if place[0] in known else ".".join(place[:2])
    if inner := [name for name in known if name.startswith(f"{key}.")]:
        return key, f"{key} is a section and takes keys of its own: {', '.join(inner)}"
    if key not in known:
        last = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
        near = last or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        return key, f"there is no key {key}; did you mean {near[0]}?"
    section, _, name = key.rpartition(".")
    value = json.dumps((given[section] if section else given)[name], default=str)
    wanted = [e["msg"] for e in error.errors() if ".".join(map(str, e["loc"])).startswith(key)]
    wanted = [re.sub("Input should be |String should have", "", message).strip() for message in wanted]
    wanted = ["two numbers from 0 to below 1"] if name == "betas" else wanted
    return key, f"{key}={value} must be {' or '.join(wanted)}"


def key_lines(kind: type, before: str = "") -> list[str]:
    """A line for each key of a configuration: its default, and what the comment behind the field says."""
    meanings = dict(re.findall(r"^    (\w+):.*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    lines = []
    for f in fields(kind):
        if is_dataclass(f.default_factory):
            lines += key_lines(f.default_factory, f"{f.name}.")
        else:
            lines.append(f"  {before}{f.name}={json.dumps(f.default)}  {meanings.get(f.name, '')}".rstrip())
    return lines
