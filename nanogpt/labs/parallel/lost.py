"""What a group of ranks needs where some die: a name for each life, and who is missing.

Exported from notebooks/20_ddp.ipynb.
"""

import time
import uuid
from threading import Thread

from nanogpt.distributed import Ranks


def roll_call(ranks: Ranks, store, seconds: float) -> str:
    """Wait until all others have written how they ended, or for `seconds`; those that do not wait, by name."""
    others = sorted(set(range(ranks.size)) - {ranks.rank})
    deadline = time.monotonic() + seconds
    while not store.check([f"{rank}" for rank in others]) and time.monotonic() < deadline:
        time.sleep(0.05)
    lost = []
    for rank in others:
        said = store.get(f"{rank}").decode() if store.check([f"{rank}"]) else "does not answer"
        if said != "waits":
            lost.append(f"rank {rank} {said}")
    return "; ".join(lost) or "all wait as well: for something else (chapter 20b), or for the network"


def who_is_missing(ranks: Ranks, store, seconds: float) -> str:
    """The roll call after a collective has failed: what became of the other ranks, but for those that wait as well."""
    told = []
    # A thread asks: behind a cut cable the store itself never answers, and its calls know no time limit.
    thread = Thread(target=lambda: told.append(roll_call(ranks, store, seconds)), daemon=True)
    thread.start()
    thread.join(2 * seconds)
    return told[0] if told else "the store does not answer, so the host of rank 0 is gone or cut off"


def same_life(ranks: Ranks, store) -> str:
    """A name that only the ranks of this life know: after a restart the store still says what the dead have set."""
    me, others = uuid.uuid4().hex, range(1, ranks.size)
    if ranks.rank:
        store.set(f"here {ranks.rank}", me)
        life = store.get(me).decode()  # rank 0 answers under the name that was given
        store.set(f"{life} {ranks.rank}", "")
        return life
    for _ in range(30_000):  # 300 s and more
        if store.check([f"{me} {r}" for r in others]):
            return me
        for rank in others:
            if store.check([f"here {rank}"]):
                store.set(store.get(f"here {rank}").decode(), me)
        time.sleep(0.01)
    raise TimeoutError(f"of {ranks.size} ranks not all have come")
