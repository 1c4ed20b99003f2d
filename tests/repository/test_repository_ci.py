"""What CI installs by itself: it says what is lacking, and lacks it without failing."""

import os
import shutil
import subprocess

import pytest

from course.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="no bash here")


def packages(folder, apt: str) -> subprocess.CompletedProcess:
    """.ci/packages as root on a machine that has none of the programs; `apt` is what apt-get does there."""
    for name in ("bash", "sed", "timeout", "ln"):
        (folder / name).symlink_to(shutil.which(name))
    for name, does in {"apt-get": apt, "id": "echo 0"}.items():
        (folder / name).write_text(f"#!{shutil.which('bash')}\n{does}\n")
        (folder / name).chmod(0o755)
    command, env = [shutil.which("bash"), str(ROOT / ".ci" / "packages")], {"PATH": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_one_that_cannot_be_installed_is_named_and_stands_in_nobodys_way(tmp_path):
    installs_bubblewrap = f'[[ "$*" == *bubblewrap* ]] && ln -s "$BASH" {tmp_path}/bwrap'
    done = packages(tmp_path, f"echo 'E: no network' >&2; {installs_bubblewrap}; exit 100")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("no chromium iproute2 here: what needs it skips")
    assert done.stdout.count("\n") == 1
