"""Each line of the grader's defences is taken away once, in a copy; a test must fail. Run by hand, in about ten minutes:

    python bench/grading_defences.py [WORD ...]     # those whose name begins with a word (default: all)

What is tried against a weakened sandbox harms nobody: no fork bomb, no flood of memory that a limit alone would stop.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN, ATTACKS, PROTOCOL = (f"tests/grading/test_grading_{name}.py" for name in ("run", "attacks", "protocol"))
LOOK = (RUN, "said_to_be")


def attack(*names: str) -> tuple[str, str]:
    return ATTACKS, " or ".join(f"bubblewrap-{name}" for name in names)


def flag(name: str, test=LOOK, left: str = ""):
    return f"bwrap {name}", "sandbox.py", f'"{name}"', f'"{left or "--unshare-user"}"', test


NO_ONE_UNSHARES = ["user", "ipc", "pid", "net", "uts", "cgroup-try"]


def all_but(name: str):
    kept = ", ".join(f'"--unshare-{one}"' for one in NO_ONE_UNSHARES if one != name)
    return f"namespace: {name}", "sandbox.py", '"--unshare-all"', kept, LOOK


def limit(name: str):
    return f"RLIMIT_{name}", "sandbox.py", f'"{name}": ', f'"{name} left out": ', LOOK


# What it is, the module, what stands in it once, what takes its place, the test that must fail.
MUTATIONS = [
    *map(all_but, ("ipc", "pid", "net", "uts")),
    flag("--disable-userns"),
    flag("--new-session"),
    ("bwrap --remount-ro /dev", "sandbox.py", ', "--remount-ro", "/dev"', "", LOOK),
    ("view: the repository is shown", "sandbox.py", '("course", "nanogpt")]\n    folders', '("course", "nanogpt", "exercises")]\n    folders', attack("reads_sources")),
    ("view: a course below /usr", "sandbox.py", 'if ROOT.is_relative_to("/usr"):', "if False:", (RUN, "below_usr")),
    ("view: all is shown", "sandbox.py", 'words = ["--ro-bind", "/usr", "/usr"]', 'words = ["--ro-bind", "/", "/"]', LOOK),
    ("environment of the template", "warm.py", "env=env, ", "", LOOK),
    ("environment of a grader that begins anew", "anew.py", "os.execve(command[0], command, sandbox.ENVIRONMENT)", "os.execve(command[0], command, dict(os.environ))", (RUN, "holds_nothing")),
    ("no way to new rights", "template.py", "    done(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))\n", "", LOOK),
    ("sizes of /tmp and /dev/shm", "sandbox.py", '["--size", str(TMP), "--tmpfs", folder]', '["--tmpfs", folder]', LOOK),
    *map(limit, ("AS", "NPROC", "FSIZE", "NOFILE", "CORE", "CPU")),
    ("another uid", "template.py", "        os.setresuid(uid, uid, uid)\n", "", LOOK),
    ("capabilities are given up", "template.py", "    done(libc.capset(version, nothing))\n", "", LOOK),
    ("bounding set", "template.py", "    while libc.prctl(DROP_BOUND, capability, 0, 0, 0) == 0:\n        capability += 1\n", "", LOOK),
    ("the fork looks where it is", "template.py", "    if said := not_inside(here):\n        raise OSError(said)\n", "", (RUN, "not_inside")),
    ("the grader's terminal", "template.py", "stdout=pipe, stderr=pipe,", "stdout=pipe, stderr=None,", attack("terminal")),
    ("keys of a template", "template.py", "    driver.join_an_empty_keyring()\n", "", (RUN, "no_keys_of_ours")),
    ("keys of a driver", "driver.py", "    join_an_empty_keyring()\n", "", (RUN, "no_keys_of_ours")),
    ("descriptors of the template", "template.py", '    os.closerange(3, os.sysconf("SC_OPEN_MAX"))\n', "", (RUN, "fork_of_the_template")),
    ("the pipe whose end ends the box", "template.py", "stdin=life, ", "stdin=subprocess.DEVNULL, ", (RUN, "fork_of_the_template")),
    ("the watch on one that talks", "boxes.py", "            self.watch(deadline)\n        self.watch(deadline)\n", "            self.watch(deadline)\n", (RUN, "memory_of_a_box")),
    ("the watch on shared memory", "boxes.py", "if shared_memory() - self.shared > MEMORY:", "if False:", (RUN, "no_process_holds")),
    ("the watch on memory", "boxes.py", "self.memory() > MEMORY", "False", (RUN, "memory_of_a_box")),
    ("time limit of a check", "boxes.py", "if (now := time.monotonic()) > deadline:", "if (now := time.monotonic()) > deadline + 1e9:", attack("loop")),
    ("a fresh box after a failure", "grader.py", "        except Ended as ended:\n            self.boxes.end()\n", "        except Ended as ended:\n", attack("kills_all")),
    ("what a check notes is gone", "grader.py", "self.boxes.end()  # with what the check noted there", "pass", attack("takes_notes")),
    ("what a check leaves is ended", "driver.py", 'if options["alone"]:  #', "if False:  #", (RUN, "selfcheck")),
    ("the grader's end is seen", "driver.py", "if requests in dict(watch.poll()):", "if False:", (RUN, "killed_leaves")),
    ("a sandbox that fails gives way to none", "sandbox.py", "if name is None and shutil.which", "if False and shutil.which", (RUN, "sandbox_that_works")),
    ("what a uid left in the kernel", "processes.py", "                end(id)\n", "                pass\n", (RUN, "left_in_the_kernel")),
    ("cap on a reply's header", "protocol.py", "header > MAX_HEADER or body > MAX_BODY:\n        raise TooLarge", "header > MAX_HEADER:\n        raise TooLarge", (PROTOCOL, "too_large_is_not_read")),
    ("a shape is not negative", "protocol.py", "not 0 <= n <= MAX_BODY", "not n <= MAX_BODY", (PROTOCOL, "malformed_replies")),
    ("dtypes that are known", "protocol.py", "dtype not in SIZES or", "False or", (PROTOCOL, "malformed_replies")),
    ("nothing is left over", "protocol.py", "if reader.at != len(body):", "if False:", (PROTOCOL, "left_over")),
    ("nesting is bounded", "protocol.py", "depth > MAX_DEPTH or ", "", (PROTOCOL, "nested_too_deeply")),
    ("number of results", "grader.py", "if not is_asked_for(got, arguments):", "if False:", attack("too_few", "no_arguments")),
    ("number of the request", "grader.py", 'frame["id"] != self.number or ', "", attack("other_number")),
    ("one reply", "grader.py", 'kind == "value" and not values', 'kind == "value"', attack("two_replies")),
    ("entries of dictionaries", "protocol.py", "if self.pairs > MAX_PAIRS:", "if False:", attack("equal_hashes")),
    ("messages are counted", "grader.py", "for _ in range(MAX_FRAMES):", "while True:", attack("flood_frames")),
    ("counts are exact", "checks.py", "if isinstance(expected, int) and isinstance(got, int):", "if False:", (PROTOCOL, "count_is_exact")),
    ("sources in a container", "cli.py", "sandbox.hide([*sandbox.unneeded(), ", "sandbox.hide([", (ATTACKS, "container-reads_course")),
    ("dtype", "checks.py", "if got.dtype != expected.dtype:", "if False:", attack("torch_dtype")),
    ("shape", "checks.py", "if got.shape != expected.shape:", "if False:", attack("torch_broadcast")),
    ("type", "checks.py", "if not isinstance(got, torch.Tensor | np.ndarray):", "if False:", attack("torch_list")),
    ("finite", "judge.py", "if finite(expected) and not finite(got)", "if False", attack("torch_nan")),
    ("a judge's time", "judge.py", "with time_limit(check.seconds):", "if True:", (RUN, "judge_that_cannot")),
    ("no link is followed", "submission.py", "os.O_NOFOLLOW | ", "", attack("symlink")),
    ("a FIFO is not waited for", "submission.py", "if not stat.S_ISREG(about.st_mode):", "if False:", attack("fifo")),
    ("size of a file", "submission.py", "if len(data) > MAX_BYTES:", "if False:", attack("large")),
    ("size of a cell", "submission.py", "if len(source) > MAX_TEXT:", "if False:", attack("endless_cell")),
    ("an id is there once", "submission.py", "if len(cells) > 1:", "if False:", attack("twice")),
    ("the true student's numbers", "driver.py", '        names["STUDENT"] = request["student"]\n', "        pass\n", (RUN, "not_the_students")),
    ("results in one step", "record.py", "    write_atomically(path, ", "    path.parent.mkdir(parents=True, exist_ok=True)\n    path.write_bytes(", (RUN, "in_one_step")),
    ("nothing of an earlier result stays", "record.py", '    if result["score"] is not None and', '    result["score"] = max(result["score"] or 0, before.get("score") or 0)\n    if result["score"] is not None and', (ATTACKS, "takes_the_earlier_score and bubblewrap")),
    ("text is escaped", "page.py", "html.escape(clean(value))", "clean(value)", ("tests/grading/test_grading_desk.py", "escaped")),
]  # fmt: skip


def main(words: list[str]) -> int:
    missed = []
    with tempfile.TemporaryDirectory(prefix="mutate-", dir="/var/tmp") as name:
        copy = Path(name)  # not below /tmp, of which a sandbox has its own
        copy.chmod(0o755)
        for folder in ("course", "nanogpt", "tests", "exercises"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "exercises").chmod(0o755)  # as in a fresh clone; grading in a container changes it
        shutil.copy(ROOT / "pyproject.toml", copy)
        for what, module, old, new, (file, test) in sorted(MUTATIONS, key=lambda one: one[4][0] == ATTACKS):
            if words and not any(what.startswith(word) for word in words):
                continue
            path = next(p for at in ("grade", "exercises") for p in (copy / "course" / at).rglob(module))
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{what}: {old!r} stands {text.count(old)} times in {module}"
            path.write_text(text.replace(old, new), encoding="utf-8")
            failed = failure(copy, file, test)
            path.write_text(text, encoding="utf-8")
            missed += [] if failed else [what]
            print(f"{what:40} {module:14} {failed or 'NOT CAUGHT'}", flush=True)
    print(f"{len(missed)} not caught" + (f": {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def failure(copy: Path, file: str, test: str) -> str:
    """The test that failed; "" if none did."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, "-k", test]
    env = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=copy, env=env, capture_output=True, text=True, timeout=400
    )  # more than a test waits
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed and " passed" not in done.stdout:
        assert " skipped" in done.stdout, done.stdout[-2000:]
        return "(bubblewrap refuses to start)"
    return failed[0].partition("::")[2].partition(" - ")[0] if failed else ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
