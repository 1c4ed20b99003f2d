"""The rules of the race: what a record must say, how sure it must be, and the board of all records.

Exported from notebooks/25_speedrun.ipynb, grown by notebooks/25b_near_the_floor.ipynb.
"""

import json
import math
from pathlib import Path
from statistics import fmean, stdev

from nanogpt.files import save_json

T99 = {
    5: 3.747,
    6: 3.365,
    7: 3.143,
    8: 2.998,
    9: 2.896,
    10: 2.821,
}  # Student's t, one-sided, by the number of runs


def surely_below(losses: list[float], bar: float) -> bool:
    """Whether the mean of all runs like these is below the bar, with p < 0.01 (one-sided t-test, 5 to 10 runs)."""
    error = stdev(losses) / math.sqrt(len(losses))
    return bar - fmean(losses) > T99[len(losses)] * error


TRACKS = {
    "shakespeare": {
        "text": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "bar": 1.88,  # nats a character: nanoGPT's README
        "context": 64,
        "targets": 111_539,
        "get": "`course data tinyshakespeare` fetches the right one",
    },
    "stories": {
        "text": "e78269b6975feb3176f21a69a8c593c985602d1c2e8e70fff0aab61c32648bb6",
        "floor": 0.48855,
        "bar": 0.51297,  # nats a token: 1.05 times the floor
        "context": 128,
        "targets": 258_850,
        "get": "`course run 03` makes the right one",
    },
}


def objections(record: dict) -> list[str]:
    """The rules that a record breaks, a sentence each; an empty list if it may join the board."""
    track, found = TRACKS.get(record["track"]), []
    if track is None:
        return [f"track {record['track']!r} is not known; choose one of {', '.join(TRACKS)}"]
    if record["text"] != track["text"]:
        found.append(f"it was trained on another text: {track['get']}")
    if record["context"] > track["context"]:
        found.append(f"it was evaluated with a context of {record['context']}; {track['context']} is allowed")
    if record["targets"] != track["targets"]:
        found.append(f"it was evaluated on {record['targets']:,} targets; there are {track['targets']:,}")
    seeds, losses = record["seeds"], record["losses"]
    if not len(set(seeds)) == len(seeds) == len(losses) == len(record["seconds"]):
        found.append("each seed must have one loss and one time, and no seed may come twice")
    elif len(seeds) not in T99:
        found.append(f"number of seeds: {len(seeds)}; a record needs {min(T99)} to {max(T99)}")
    elif not surely_below(losses, track["bar"]):
        found.append(
            f"a mean loss below {track['bar']} is not shown with p < 0.01; train longer or add seeds"
        )
    if "floor" in track and losses and fmean(losses) < track["floor"]:
        found.append(f"no model can be below the floor of {track['floor']}: it has seen val or the future")
    return found


def share(record: dict) -> float:
    """The mean time of a run, divided by the reference's on the same machine."""
    return fmean(record["seconds"]) / record["reference_seconds"]


def put_on_board(record: dict, path: Path) -> int:
    """Put a record on the board, a JSON file, the fastest first; returns its place. ValueError if it breaks a rule.

    Machines differ, so the order is that of `share`.
    """
    broken = objections(record)
    if broken:
        raise ValueError(f"this record cannot join: {'; '.join(broken)}")
    board = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    faster = [e for e in board if e["track"] == record["track"] and share(e) < share(record)]
    save_json(path, sorted([*board, record], key=lambda entry: (entry["track"], share(entry))))
    return len(faster) + 1
