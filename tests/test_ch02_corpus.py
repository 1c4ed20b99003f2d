import hashlib
import itertools
import math
import re
import statistics
import time
from collections import Counter

import numpy as np
import pytest

from nanogpt.corpus import NUMBERS, POOLS, ensure_corpus, entropy, floor_per_token, grammar, stories
from nanogpt.shards import document_starts, open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer

SAMPLE = list(stories(3000, seed=11))


@pytest.fixture(scope="session")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.train((story.text for story in stories(300)), 400)


# An independent reader: templates become regular expressions, facts named groups, and what a fact decides is
# checked afterwards. It shares the grammar's text with nanogpt.corpus, and none of its code.


def forms(pool: str) -> dict[str, str]:
    """First form → last form, for every entry of a pool."""
    return {entry.split("/")[0]: entry.split("/")[-1] for entry in POOLS[pool].split(", ")}


LABEL = itertools.count()


def regex_of(symbol: str, pools: dict[str, str]) -> str:
    """A regular expression for symbol, with a named group for every choice and every recall."""
    branches = []
    for alternative in grammar()[symbol]:
        out = ""
        for text, inside in re.findall(r"([^{}]+)|\{([^}]*)\}", alternative):
            if text:
                out += re.escape(text)
            elif inside in grammar():
                out += regex_of(inside, pools)
            elif ":" in inside:
                key, pool = inside.split(":")
                pools[key] = pool
                out += f"(?P<draw_{key}_{next(LABEL)}>{'|'.join(map(re.escape, forms(pool)))})"
            elif inside[0].isupper():
                words = forms(pools[inside[0]])
                said = words.values() if inside.endswith(".did") else words
                out += (
                    f"(?P<recall_{inside.replace('.', 'X')}_{next(LABEL)}>{'|'.join(map(re.escape, said))})"
                )
            else:
                sum_ = inside.strip("?").replace("-", "M").replace("+", "P")
                out += (
                    f"(?P<{'asked' if inside[0] == '?' else 'sum'}_{sum_}_{next(LABEL)}>{'|'.join(NUMBERS)})"
                )
        branches.append(f"(?P<branch_{symbol}_{next(LABEL)}>{out})")
    return f"(?:{'|'.join(branches)})"


def choices_in(text: str) -> tuple[list[int], dict[str, str], list[str]] | None:
    """From the text alone: the number of options of every choice, the facts, the answers. None if it is no story."""
    readings = []
    for plot, (expression, pools) in enumerate(plot_expressions()):
        match = expression.fullmatch(text)
        if not match:
            continue
        said = sorted(
            (match.start(g), g, words) for g, words in match.groupdict().items() if words is not None
        )
        facts, options, drawn, answers = {}, [len(grammar()["story"])], [], []
        for _, group, words in said:
            kind, what = group.split("_")[0], group[group.index("_") + 1 : group.rindex("_")]
            if kind == "branch":
                options.append(len(grammar()[what]))
            elif kind == "draw":
                facts[what] = words
                options.append(len(forms(pools[what])) - drawn.count(pools[what]))
                drawn.append(pools[what])
            elif kind == "recall":
                key, _, form = what.partition("X")
                assert words == (forms(pools[key])[facts[key]] if form else facts[key]), (group, words, text)
            else:
                value = {key: NUMBERS.index(facts[key]) for key in "nmk" if key in facts}
                assert NUMBERS.index(words) == eval(what.replace("M", "-").replace("P", "+"), value), (
                    group,
                    text,
                )
                answers += [words] if kind == "asked" else []
        readings.append((options, facts, answers, plot))
    assert len(readings) <= 1, f"two plots tell this: {text}"
    return readings[0][:3] if readings else None


def plot_expressions(cache=[]):  # noqa: B006
    if not cache:
        for plot in grammar()["story"]:
            pools: dict[str, str] = {}
            parts = [regex_of(symbol, pools) for symbol in re.findall(r"\{(\w+)\}", plot)]
            cache.append((re.compile(" ".join(parts)), pools))
    return cache


def test_choices_read_from_the_text_alone_give_the_stated_probability():
    for story in SAMPLE:
        options, _, answers = choices_in(story.text)
        assert -sum(map(math.log, options)) == pytest.approx(story.logprob, abs=1e-9)
        assert answers == [story.text[start:end] for start, end in story.answers]


def test_the_reader_refuses_what_the_grammar_does_not_tell():
    story = next(s for s in SAMPLE if "promise" in s.text)
    assert choices_in(story.text[:-1]) is None and choices_in(story.text + " ") is None
    other = next(name for name in forms("girl") if name not in story.text)
    girl = next(name for name in forms("girl") if name in story.text)
    with pytest.raises(AssertionError):  # one mention of somebody who was never there
        choices_in(other.join(story.text.rsplit(girl, 1)))


def word_sets(template: str) -> list[set[str]]:
    """For each word of a template all the words that can stand there; ends within a fact of several words."""
    for symbol in ("where", "Where"):
        template = template.replace("{" + symbol + "}", grammar()[symbol][0])
    sets = []
    for word in template.split(" "):
        before, inside, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?([^}]*)", word).groups()
        options = words_for(inside) if inside else [""]
        sets.append({before + option.split(" ")[0] + ("" if " " in option else after) for option in options})
        if any(" " in option for option in options):
            break
    return sets


def words_for(inside: str) -> list[str]:
    if inside in grammar():
        return grammar()[inside]
    pools = dict(re.findall(r"\{(\w):(\w+)\}", str(grammar())))
    if inside[0] not in pools or any(sign in inside for sign in "?+-"):
        return NUMBERS
    pool = forms(pools[inside[0]])
    return list(pool.values() if inside.endswith(".did") else pool)


def can_be_mistaken(first: str, second: str) -> bool:
    return all(one & two for one, two in zip(word_sets(first), word_sets(second)))


def test_no_alternative_can_be_mistaken_for_another_nor_for_its_beginning():
    """So the choices follow from the text for all stories, not only for sampled ones.

    A reader who goes from left to right knows each alternative by its words, and then where it ends.
    """
    for symbol in set(grammar()) - {"story"}:
        for first, second in itertools.combinations(grammar()[symbol], 2):
            assert not can_be_mistaken(first, second), (symbol, first, second)
    for one, two in itertools.combinations([re.findall(r"\w+", plot) for plot in grammar()["story"]], 2):
        x, y = next(
            (x, y) for x, y in zip(one, two) if x != y
        )  # the first sentences in which the plots differ
        for first, second in itertools.product(grammar()[x], grammar()[y]):
            assert not can_be_mistaken(first, second), (x, y, first, second)


def test_pools_are_prefix_free():
    for pool in POOLS:
        words = list(forms(pool))
        assert len(set(words)) == len(words)
        assert not any(a != b and b.startswith(a) for a in words for b in words), pool


def test_no_story_begins_another_so_that_its_end_costs_nothing():
    texts = sorted(story.text for story in SAMPLE)
    assert not any(after.startswith(before) for before, after in itertools.pairwise(texts))


def test_a_longer_run_begins_with_the_shorter_one_on_every_machine():
    assert list(stories(50, seed=11)) == SAMPLE[:50]
    assert list(itertools.islice(stories(seed=11), 50)) == SAMPLE[:50]
    assert next(stories(1, seed=12)) != SAMPLE[0]
    digest = hashlib.sha256("\n".join(story.text for story in stories(1000)).encode()).hexdigest()
    assert digest.startswith("48c2c2f3bedea299")  # the corpus that the notebooks' outputs were made with


def test_the_entropy_is_the_mean_of_minus_logprob():
    costs = [-story.logprob for story in stories(20_000, seed=1)]
    error = statistics.stdev(costs) / math.sqrt(len(costs))
    assert abs(statistics.fmean(costs) - entropy()) < 3 * error
    assert error < 0.002 * entropy()


def test_the_entropy_of_small_symbols_by_hand():
    assert entropy("mood") == pytest.approx(math.log(16))
    assert entropy("where") == pytest.approx(math.log(5) + math.log(12))
    draws = math.log(18) + math.log(12) + math.log(12)
    assert entropy("open") == pytest.approx(math.log(4) + math.log(14) + math.log(6) + draws)


def test_a_second_draw_from_a_pool_has_fewer_possibilities(monkeypatch):
    from nanogpt import corpus

    corpus.alternatives.cache_clear()
    monkeypatch.setattr(corpus, "grammar", lambda: {"pair": ["{A:girl} {B:girl}"]})
    try:
        assert corpus.entropy("pair") == pytest.approx(math.log(12) + math.log(11))
        for seed in range(100):
            out: list[str] = []
            logprob = corpus.tell("pair", corpus.random.Random(seed), {}, out, [])
            assert out[0] != out[2] and logprob == pytest.approx(-math.log(12 * 11))
    finally:
        corpus.alternatives.cache_clear()


def test_answers_are_number_words_and_every_story_has_some():
    for story in SAMPLE:
        assert story.answers
        for start, end in story.answers:
            assert story.text[start:end] in NUMBERS
            assert not story.text[start - 1].isalpha() and not story.text[end].isalpha()


def test_the_text_is_varied_and_short_enough_for_a_small_context():
    words = [re.findall(r"\w+|[^\w\s]", story.text) for story in SAMPLE]
    assert len(set(itertools.chain(*words))) > 300
    assert len({story.text for story in SAMPLE}) == len(SAMPLE)
    assert min(map(len, words)) > 50 and max(map(len, words)) < 140


class Words:
    encode = staticmethod(str.split)


def test_the_floor_counts_one_separator_a_story():
    some = SAMPLE[:10]
    tokens = sum(len(story.text.split()) + 1 for story in some)
    assert floor_per_token(some, Words()) == pytest.approx(-sum(story.logprob for story in some) / tokens)
    assert floor_per_token(iter(some), Words()) == floor_per_token(some, Words())
    with pytest.raises(ValueError, match="at least one story"):
        floor_per_token([], Words())


def test_at_least_5_megabytes_a_second():
    def rate() -> float:
        start = time.process_time()
        size = sum(len(story.text) for story in stories(4000))
        return size / (time.process_time() - start)

    assert max(rate() for _ in range(3)) > 5e6


# The embedded corpus


def test_ensure_corpus_is_deterministic_and_made_once(tmp_path, tokenizer):
    manifests = [ensure_corpus(tmp_path / name, tokenizer, n=300) for name in "ab"]
    assert manifests[0] == manifests[1]
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert ensure_corpus(tmp_path / "a", tokenizer, n=300) == manifests[0]
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert ensure_corpus(tmp_path / "a", tokenizer, n=301) != manifests[0]


def test_ensure_corpus_holds_every_story_once_and_states_the_floor(tmp_path, tokenizer):
    manifest = ensure_corpus(tmp_path, tokenizer, n=300, seed=5)
    expected = {story.text: -story.logprob for story in stories(300, 5)}
    found, nats = [], {}
    for split in ("train", "val", "test"):
        [path] = open_shards(tmp_path, split, tokenizer.fingerprint)
        tokens = np.asarray(read_shard(path))
        starts = document_starts(tokens, tokenizer.eot)
        assert (tokens[starts] == tokenizer.eot).all()  # before each document, as in llm.c
        texts = [tokenizer.decode(d[1:]) for d in np.split(tokens, starts[1:])]
        nats[split] = sum(expected[text] for text in texts) / len(tokens)
        assert manifest["splits"][split]["documents"] == len(texts)
        assert manifest["splits"][split]["bytes"] == sum(len(text.encode()) for text in texts)
        found += texts
    assert Counter(found) == Counter(story.text for story in stories(300, 5))
    assert manifest["floor"] == pytest.approx(nats["val"])


def test_ensure_corpus_takes_the_tokenizer_of_chapter_01_and_notices_another(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert ensure_corpus(tmp_path / "stories", n=100)["fingerprint"] == tokenizer.fingerprint
    assert BPETokenizer.load(tmp_path / "stories/tokenizer.json").fingerprint == tokenizer.fingerprint
    other = BPETokenizer.train((story.text for story in stories(300)), 300)
    assert ensure_corpus(tmp_path / "stories", other, n=100)["fingerprint"] == other.fingerprint
    assert max(read_shard(open_shards(tmp_path / "stories", "train")[0])) < 300
