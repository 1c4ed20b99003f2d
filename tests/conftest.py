import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"

# A script's `make test &` has Ctrl-C ignored, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests and notebooks run alike on every machine, with or without a GPU.
os.environ.setdefault("NANOGPT_SCALE", "laptop")
os.environ.setdefault("NANOGPT_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before PyTorch is loaded, as course/__init__.py says
if "TIKTOKEN_CACHE_DIR" not in os.environ and (SHARED / "tiktoken_cache").is_dir():
    os.environ["TIKTOKEN_CACHE_DIR"] = str(SHARED / "tiktoken_cache")

# No test fails for being slow, nor on one day of many: the examples are the same in every run, and
# `HYPOTHESIS_PROFILE=explore` draws new ones. A failure is told without hypothesis's guesses at an explanation.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, Phase, settings

    for name, derandomize in {"course": True, "explore": False}.items():
        settings.register_profile(
            name,
            deadline=None,
            derandomize=derandomize,
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "course"))


@pytest.fixture(scope="session")
def built_house(tmp_path_factory):
    """The machinery's tests: a small course of one chapter, built once."""
    from house import House

    return House.made(tmp_path_factory.mktemp("course") / "house")


@pytest.fixture
def house(built_house, tmp_path):
    """A copy of the small course, to be changed at will."""
    return built_house.copied(tmp_path / "house")


@pytest.fixture(scope="module")
def one_thread():
    """The same bits take the same number of threads, and a forked child can have no more than one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tinyshakespeare() -> Path:
    """The 1.1 MB text, where it is: downloaded by `course data tinyshakespeare`, or shared beside the clone."""
    for path in (ROOT / "data/downloads/tinyshakespeare.txt", SHARED / "data/tinyshakespeare.txt"):
        if path.exists():
            return path
    pytest.skip("no TinyShakespeare here; `course data tinyshakespeare` downloads it")


@pytest.fixture(scope="session")
def gpt2_vocab() -> None:
    """Skips where GPT-2's vocabulary is neither in tiktoken's cache nor to be downloaded."""
    tiktoken = pytest.importorskip("tiktoken")
    try:
        tiktoken.get_encoding("gpt2")
    except Exception as error:
        pytest.skip(
            f"GPT-2's vocabulary is not in TIKTOKEN_CACHE_DIR and cannot be downloaded: {type(error).__name__}"
        )


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer of 400 tokens, learned from stories."""
    from nanogpt.labs.corpora.stories import stories
    from nanogpt.tokenizer import BPETokenizer

    return BPETokenizer.train((story.text for story in stories(300)), 400)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Of the trainer's tests: a text, so short that an epoch ends within 15 steps, and the shards that the first run makes of it."""
    from small_run import write_text

    folder = tmp_path_factory.mktemp("trainer")
    write_text(folder / "text.txt", paragraphs=60)
    return folder


@pytest.fixture
def config(folder, tmp_path):
    """A run of 12 steps without anything on the way, as config(train_dtype="bf16") changes it."""
    from small_run import small

    quiet = {"train_max_steps": 12, "eval_every": 0, "eval_sample_every": 0}
    return partial(small, folder, run_dir=str(tmp_path / "run"), **quiet)


@pytest.fixture
def poison(monkeypatch):
    """poison({5: math.nan}): the fifth step that the process makes has such a loss."""
    from small_run import poisoned_steps

    return partial(poisoned_steps, monkeypatch)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Of chapter 17's trainer: a folder with shards of stories, and their tokenizer."""
    import simple_run

    folder = tmp_path_factory.mktemp("stories")
    return folder, simple_run.tell(folder)
