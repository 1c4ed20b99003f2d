"""How exercises 17 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong
from course.figures.crash import Disk


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def outcome(s, value, kind):
    """`infinite` and `no number` stand for the floats."""
    value = (
        {"infinite": float("inf"), "no number": float("nan")}.get(value, value)
        if isinstance(value, str)
        else value
    )
    try:
        got = s.strict(value, {"int": int, "float": float, "bool": bool, "str": str}[kind])
    except ValueError as error:
        return ["ValueError", "with the value" if repr(value) in str(error) else "without the value"]
    except Exception as error:
        return [type(error).__name__, "ValueError is due"]
    return [type(got).__name__, repr(got)]


def what_scripts_convert(draw):
    return [
        ("3e-4", "float"),
        ("3", "int"),
        ("false", "bool"),
        (3.7, "int"),
        (0.5, "float"),
        ("tiny", "str"),
        (0, "bool"),
    ]


def everything(draw):
    values = [
        number(draw, 2, 99),
        number(draw, 1, 9) / 4,
        True,
        False,
        0,
        1,
        "",
        "12",
        "true",
        None,
        -3.0,
        1e300,
    ]
    return [(value, kind) for value in values for kind in ("int", "float", "bool", "str")]


def no_numbers(draw):
    return [("infinite", "float"), ("no number", "float"), ("infinite", "int"), (2, "float")]


def asked_of_disk(s, name, old, text):
    from course.figures.crash import Disk

    disk = Disk(**{name: old} if old else {})
    s.save(disk, name, text)
    return [list(call) for call in disk.done]


def saves(draw):
    word = "".join("abcdefgh"[i] for i in torch.randint(8, (6,), generator=draw).tolist())
    return [(word, "old", "new")]


def first_saves(draw):
    """Of a file that is not there yet."""
    return [("log", "", "first")]


def safe_everywhere(got, expected, name, old, text) -> str:
    """Makes the calls on a disk of ours, and looks at it after each."""
    disk = Disk(**{name: old} if old else {})
    if not isinstance(got, list) or len(got) > 100:
        return "save asks too much of the disk"
    for call in got:
        try:
            {
                "write": disk.write,
                "flush": disk.flush,
                "rename": disk.rename,
                "flush_names": disk.flush_names,
            }[call[0]](*call[1:])
        except (LookupError, TypeError, OSError):
            return f"{call} cannot be done"
        left = disk.after_crash(name)
        if not set(left) <= {old, text}:
            return f"after {call[0]}({', '.join(map(repr, call[1:]))}) a crash may leave {left} of {name}"
    if disk.after_crash(name) != [text]:
        return f"save has returned, and a crash may leave {disk.after_crash(name)} of {name}"
    return "" if disk.names() == [name] else f"files are left: {disk.names()}"


def losses(s, seed, before, after):
    """Of a run that is remembered after so many steps and goes on; of one that is resumed; of a second one."""
    run = s.Run(seed)
    for _ in range(before):
        run.step()
    state = s.remember(run)
    found = [[run.step() for _ in range(after)]]
    for other in (seed + 1, seed + 2):
        resumed = s.Run(other)
        s.go_on(resumed, state)
        found.append([resumed.step() for _ in range(after)])
    return found


def resumed_once(s, seed, before, after):
    run = s.Run(seed)
    for _ in range(before):
        run.step()
    state = s.remember(run)
    resumed = s.Run(seed + 1)
    s.go_on(resumed, state)
    return [resumed.step() for _ in range(after)]


def short_runs(draw):
    return [(number(draw, 1, 1000), 4, 3) for _ in range(2)]


def long_runs(draw):
    """Over the ends of epochs, with updates that were skipped."""
    return [(number(draw, 1, 1000), number(draw, 7, 30), 8) for _ in range(3)]


def windows(draw):
    return [(n,) for n in (2, 5, 128, number(draw, 10, 5000))]


def limits(draw):
    return [(number(draw, 1000, 10**6), number(draw, 0, 500) / 100) for _ in range(4)]


CHECKS = [
    Check("17-1", "what scripts convert without a word is refused", 1, outcome, what_scripts_convert, hidden=False),
    Check("17-1", "every value with every kind, and messages that hold the value", 2, outcome, everything),
    Check("17-1", "no setting is infinite or not a number", 1, outcome, no_numbers),
    Check("17-2", "a file is old or new after every call, and new at the end", 3, asked_of_disk, saves, hidden=False,
          judge=safe_everywhere),
    Check("17-2", "a file that was not there before is whole or not there", 1, asked_of_disk, first_saves, judge=safe_everywhere),
    Check("17-3", "a run goes on with the same losses", 2, resumed_once, short_runs, hidden=False),
    Check("17-3", "over epochs and skipped updates, beside the old run, and twice from one state", 3, losses, long_runs),
    CheckOfCheck(
        "17-4",
        "the check finds repairs that lose a step, keep one twice, or keep a torn line",
        4,
        "check_repair",
        "repair",
        right=(
            "import json\ndef repair(text, step):\n    kept = ''\n    for line in text.splitlines(keepends=True):\n        try:\n"
            "            if not line.endswith('\\n') or json.loads(line)['step'] >= step:\n                break\n"
            "        except (ValueError, TypeError, KeyError):\n            break\n        kept += line\n    return kept",
            "import json\ndef whole(line, step):\n    try:\n        line = json.loads(line)\n    except ValueError:\n        return False\n"
            "    return isinstance(line, dict) and line['step'] < step\n"
            "def repair(text, step):\n    lines, n = text.split('\\n')[:-1], 0\n"
            "    while n < len(lines) and whole(lines[n], step):\n        n += 1\n    return ''.join(line + '\\n' for line in lines[:n])",
        ),
        wrong={
            name: "import json\ndef repair(text, step):\n    kept = ''\n    for line in text.splitlines(keepends=True):\n" + body
            for name, body in {
                "a line without its newline is kept if it is valid JSON": (
                    "        try:\n            if json.loads(line)['step'] >= step: break\n        except (ValueError, TypeError): break\n"
                    "        kept += line\n    return kept"
                ),
                "the step that is made again stays": (
                    "        try:\n            if line[-1] != '\\n' or json.loads(line)['step'] > step: break\n"
                    "        except (ValueError, TypeError): break\n        kept += line\n    return kept"
                ),
                "only a torn line is dropped, later steps stay": (
                    "        try: json.loads(line)['step']\n        except (ValueError, TypeError): break\n"
                    "        if line[-1] != '\\n': break\n        kept += line\n    return kept"
                ),
                "later steps are dropped, a torn line raises": (
                    "        if json.loads(line)['step'] >= step: break\n        kept += line\n    return kept"
                ),
                "the last line is dropped, torn or not": (
                    "        try:\n            if json.loads(line)['step'] >= step: break\n        except (ValueError, TypeError): break\n"
                    "        kept += line\n    return ''.join(kept.splitlines(keepends=True)[:-1]) if kept.count('\\n') == text.count('\\n') "
                    "else kept"
                ),
                "lines after a torn one in the middle are kept": (
                    "        try:\n            if line[-1] == '\\n' and json.loads(line)['step'] < step: kept += line\n"
                    "        except (ValueError, TypeError): pass\n    return kept"
                ),
                "newlines are lost, and the next line is appended to the last": (
                    "        try:\n            if line[-1] != '\\n' or json.loads(line)['step'] >= step: break\n"
                    "        except (ValueError, TypeError): break\n        kept += line\n    return kept.rstrip('\\n')"
                ),
                "steps are compared as texts, so 10 is before 9": (
                    "        try:\n            if line[-1] != '\\n' or str(json.loads(line)['step']) >= str(step): break\n"
                    "        except (ValueError, TypeError): break\n        kept += line\n    return kept"
                ),
            }.items()
        },
        hidden=False,
    ),
    Check("17-5", "the highest z of a window", 2, "largest_z", windows, hidden=False),
    Check("17-5", "false alarms at any limit", 1, "false_alarms", limits, tolerance=1e-4),
    Check("17-5", "your own window and limit", 1, "answers", tolerance=1e-4),
]  # fmt: skip

WRONG = [
    Wrong("17-1", "the value is converted: float() takes a text, int() cuts, bool() is true for every text but the empty one",
          code="def strict(value, kind):\n    return kind(value)"),
    Wrong("17-1", "isinstance takes True for an int, and refuses a whole number where a float is due", code="""
          def strict(value, kind):
              if not isinstance(value, kind):
                  raise ValueError(f"{value!r} is no {kind.__name__}")
              return value
          """),
    Wrong("17-1", "a whole number is refused where a float is due: `lr: 1` is a rate",
          "if kind is float and type(value) is int:", "if False:"),
    Wrong("17-1", "infinity and nan are floats too, and pass", "(kind is float and not math.isfinite(value))", "False"),
    Wrong("17-1", "the message does not say which value it was", "{value!r} is not", "the value is not"),
    Wrong("17-1", "True is a whole number to isinstance, and became a rate of 1.0",
          "type(value) is int:", "isinstance(value, int):"),
    Wrong("17-2", "the file is written in place: a crash leaves it torn",
          code='def save(disk, name, text):\n    disk.write(name, text)\n    disk.flush(name)\n    disk.flush_names()'),
    Wrong("17-2", "the new name comes before its contents are certain",
          "disk.flush(aside)\n    disk.rename(aside, name)", "disk.rename(aside, name)\n    disk.flush(name)"),
    Wrong("17-2", "contents are never flushed", "    disk.flush(aside)\n", ""),
    Wrong("17-2", "names are never flushed: a crash brings the old file back after save has returned",
          "    disk.flush_names()", "    pass"),
    Wrong("17-2", "names are flushed before the rename, which is the one that counts",
          "disk.rename(aside, name)\n    disk.flush_names()", "disk.flush_names()\n    disk.rename(aside, name)"),
    Wrong("17-2", "the contents are copied to the name, and the file beside it stays",
          "disk.rename(aside, name)", "disk.write(name, text)\n    disk.flush(name)"),
    Wrong("17-3", "dropout draws other numbers: the generator's state is missing", 'torch.set_rng_state(state["random"])', "pass"),
    Wrong("17-3", "the data begin again from the start", 'run.updates, run.position = state["updates"], state["position"]',
          'run.updates = state["updates"]'),
    Wrong("17-3", "the gradient's means begin again at zero", 'run.means = state["means"]', "pass"),
    Wrong("17-3", "the rate begins again: updates are forgotten",
          'run.updates, run.position = state["updates"], state["position"]', 'run.position = state["position"]'),
    Wrong("17-3", "updates are taken from the position, though some batches were skipped",
          'run.updates, run.position = state["updates"], state["position"]',
          'run.updates, run.position = state["position"] // 4, state["position"]'),
    Wrong("17-3", "the state is no copy, and trains on with the run", "return copy.deepcopy(state)", "return state"),
    Wrong("17-3", "the resumed run takes the state's own means, and the next one finds them changed",
          "state = copy.deepcopy(state)\n", "pass\n"),
    Wrong("17-4", "the check accepts everything", code="def check_repair(repair):\n    pass"),
    Wrong("17-4", "the check refuses everything", code="def check_repair(repair):\n    raise AssertionError('wrong')"),
    Wrong("17-4", "the check tries a torn line only, and never a step too many", code="""
          def check_repair(repair):
              assert repair('{"step": 1}\\n{"st', 5) == '{"step": 1}\\n'
          """),
    Wrong("17-4", "the check tears lines only where they are no JSON any more", code="""
          def check_repair(repair):
              lines = ['{"step": %d}\\n' % step for step in range(1, 13)]
              assert repair("".join(lines), 4) == "".join(lines[:3])
              assert repair("".join(lines), 20) == "".join(lines)
              assert repair("".join(lines[:2]) + '{"st', 20) == "".join(lines[:2])
          """),
    Wrong("17-5", "the value is compared with all n others: it is one of the n itself", "math.sqrt(n - 1)", "math.sqrt(n)"),
    Wrong("17-5", "the deviation is taken with n - 1 in place of n", "math.sqrt(n - 1)", "(n - 1) / math.sqrt(n)"),
    Wrong("17-5", "both sides are counted: a loss far below the mean is no spike",
          "math.erfc(limit / math.sqrt(2)) / 2", "math.erfc(limit / math.sqrt(2))"),
    Wrong("17-5", "erfc is taken for the tail of a variable with deviation 1; its own is 1/√2",
          "math.erfc(limit / math.sqrt(2)) / 2", "math.erfc(limit) / 2"),
]  # fmt: skip

MANUAL = {"17-6": 2}
RUBRIC = {
    "17-6": "½ point each. Allowed: the same rows make one update, only how many go through the model at once changes, and their "
    "losses are weighed by counted targets. To the last bit: no, sums of floating-point numbers are taken in another order (and dropout draws for other "
    "shapes); equal to rounding. Refused: another batch_tokens changes what an update is: the schedule counts updates, the rate "
    "belongs to the batch, and the log's steps no longer mean the same tokens (another dtype: other numbers, state of a scaler). To go on: a new "
    "run.dir with init_from the weights, with a rate and a warm-up for the new batch, and said so in the record."
}
