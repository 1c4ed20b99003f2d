"""A YAML file as plain data: numbers as people write them, no key twice, each error one line.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17e_long_run.ipynb.
"""

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

import nanogpt

FLOAT = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers


def decimal(loader: yaml.SafeLoader, node: yaml.Node) -> int | str:
    """A whole number to base ten, 0100 too. What YAML 1.1 takes for other numbers, as 2:00:00, is text, and so refused."""
    digits = node.value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else node.value


class Loader(yaml.SafeLoader):
    """YAML in which 6e-4 is a number, as in YAML 1.2, and a key stands once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [FLOAT, *USUAL[first]] for first in "+-0123456789"}
    yaml_constructors = yaml.SafeLoader.yaml_constructors | {"tag:yaml.org,2002:int": decimal}

    def construct_mapping(self, node, deep=False):
        names = [str(key.value) for key, _ in node.value]
        for name in {name for name in names if names.count(name) > 1}:
            raise yaml.MarkedYAMLError(problem=f"{name} stands there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def parsed(text: str, where: str) -> Any:
    """What a YAML text says; ValueError in one line where it says nothing."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
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
