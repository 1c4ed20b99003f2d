import hashlib
import itertools
import math
import re
import statistics
from collections import Counter
from functools import cache

import pytest

from course.paths import ROOT
from nanogpt.labs.corpora import stories as corpus
from nanogpt.labs.corpora.stories import NUMBERS, Count, entropy, rules, stories
from nanogpt.labs.evals.floor import check_lines, floor_per_token, readings

DATA = ROOT / "data"
SAMPLE = list(stories(600, seed=11))


# An independent reader: templates become regular expressions, facts named groups, and what a fact decides is
# checked afterwards. It shares the grammar's text with nanogpt.labs.corpora.stories, and none of its code.


def forms(pool: str) -> dict[str, str]:
    """First form → last form, for every entry of a pool."""
    return {entry.split("/")[0]: entry.split("/")[-1] for entry in rules()[pool]}


LABEL = itertools.count()


def group(name: str, expression: str) -> str:
    return f"(?P<{name}_{next(LABEL)}>{expression})"


def any_of(words) -> str:
    return "|".join(map(re.escape, words))


def regex_of(symbol: str, pools: dict[str, str]) -> str:
    """A regular expression for symbol, with a named group for every choice and every recall."""
    branches = []
    for alternative in rules()[symbol]:
        out = ""
        for text, inside in re.findall(r"([^{}]+)|\{([^}]*)\}", alternative):
            if text:
                out += re.escape(text)
            elif inside in rules():
                out += regex_of(inside, pools)
            elif ":" in inside:
                key, pools[key] = inside.split(":")
                out += group(f"draw_{key}", any_of(forms(pools[key])))
            elif inside[0].isupper():
                words = forms(pools[inside[0]])
                said = words.values() if inside.endswith(".did") else words
                out += group(f"recall_{inside.replace('.', 'X')}", any_of(said))
            else:
                kind, total = "asked" if inside[0] == "?" else "sum", inside.strip("?")
                out += group(f"{kind}_{total.replace('-', 'M').replace('+', 'P')}", any_of(NUMBERS))
        branches.append(group(f"branch_{symbol}", out))
    return f"(?:{'|'.join(branches)})"


@cache
def plot_expressions() -> list[tuple[re.Pattern, dict[str, str]]]:
    """For each plot its regular expression, and the pool of each key in it."""
    expressions = []
    for plot in rules()["story"]:
        pools: dict[str, str] = {}
        parts = [regex_of(symbol, pools) for symbol in re.findall(r"\{(\w+)\}", plot)]
        expressions.append((re.compile(" ".join(parts)), pools))
    return expressions


def choices_in(text: str) -> tuple[list[int], list[str]]:
    """From the text alone: the number of options of every choice, and the answers."""
    matches = [(expression.fullmatch(text), pools) for expression, pools in plot_expressions()]
    [(match, pools)] = [(match, pools) for match, pools in matches if match]
    said = [
        (match.start(name), name, words) for name, words in match.groupdict().items() if words is not None
    ]
    facts, options, answers = {}, [len(rules()["story"])], []
    for _, name, words in sorted(said):
        kind, what, _ = name.split("_")
        if kind == "branch":
            options.append(len(rules()[what]))
        elif kind == "draw":
            facts[what] = words
            options.append(len(forms(pools[what])))
        elif kind == "recall":
            key, _, form = what.partition("X")
            assert words == (forms(pools[key])[facts[key]] if form else facts[key]), (name, words, text)
        else:
            value = {key: NUMBERS.index(word) for key, word in facts.items() if key.islower()}
            assert NUMBERS.index(words) == eval(what.replace("M", "-").replace("P", "+"), value), (name, text)
            answers += [words] if kind == "asked" else []
    return options, answers


def test_choices_read_from_the_text_alone_give_the_stated_probability():
    for story in SAMPLE:
        options, answers = choices_in(story.text)
        assert -sum(map(math.log, options)) == pytest.approx(story.logprob, abs=1e-9)
        assert answers == [story.text[start:end] for start, end in story.answers]


def word_sets(template: str) -> list[set[str]]:
    """For each word of a template all the words that can stand there; ends within a fact of several words."""
    for symbol in ("where", "Where"):
        template = template.replace("{" + symbol + "}", rules()[symbol][0])
    sets = []
    for word in template.split(" "):
        before, inside, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?([^}]*)", word).groups()
        options = words_for(inside) if inside else [""]
        sets.append({before + option.split(" ")[0] + ("" if " " in option else after) for option in options})
        if any(" " in option for option in options):
            break
    return sets


def words_for(inside: str) -> list[str]:
    if inside in rules():
        return rules()[inside]
    pools = dict(re.findall(r"\{(\w):(\w+)\}", str(rules())))
    if inside[0] not in pools or any(sign in inside for sign in "?+-"):
        return NUMBERS
    pool = forms(pools[inside[0]])
    return list(pool.values() if inside.endswith(".did") else pool)


def tell_apart(symbol: str, other: str, first: str, second: str) -> None:
    apart = any(not one & two for one, two in zip(word_sets(first), word_sets(second)))
    assert apart, f"two readings: {symbol} {first!r} or {other} {second!r}"


def test_no_alternative_can_be_mistaken_for_another_nor_for_its_beginning():
    """So the choices follow from the text for all stories, not only for sampled ones.

    A reader who goes from left to right knows each alternative by its words, and then where it ends.
    """
    for symbol in set(rules()) - {"story"}:
        for first, second in itertools.combinations(rules()[symbol], 2):
            tell_apart(symbol, symbol, first, second)
    plots = [re.findall(r"\w+", plot) for plot in rules()["story"]]
    for one, two in itertools.combinations(plots, 2):
        differ = next((x, y) for x, y in zip(one, two) if x != y)  # the first sentences that do
        for first, second in itertools.product(*map(rules().get, differ)):
            tell_apart(*differ, first, second)


def test_pools_are_prefix_free():
    for pool in set(re.findall(r"\{\w:(\w+)\}", str(rules()))):
        words = list(forms(pool))
        assert not any(a != b and b.startswith(a) for a in words for b in words), pool


def test_no_story_begins_another_so_that_its_end_costs_nothing():
    texts = sorted(story.text for story in SAMPLE)
    assert not any(after.startswith(before) for before, after in itertools.pairwise(texts))


def test_a_longer_run_begins_with_the_shorter_one_on_every_machine():
    assert list(stories(50, seed=11)) == SAMPLE[:50]
    assert list(itertools.islice(stories(seed=11), 50)) == SAMPLE[:50]
    assert next(stories(1, seed=12)) != SAMPLE[0]
    digest = hashlib.sha256("\n".join(story.text for story in stories(1000)).encode()).hexdigest()
    assert digest.startswith("efd3efda79376447")  # the corpus that the notebooks' outputs were made with


def test_the_entropy_is_the_mean_of_minus_logprob():
    costs = [-story.logprob for story in stories(5000, seed=1)]
    error = statistics.stdev(costs) / math.sqrt(len(costs))
    assert abs(statistics.fmean(costs) - entropy()) < 3 * error
    assert error < 0.003 * entropy()


def test_the_entropy_is_this_number():
    assert f"{entropy():.6f}" == "49.918196"  # nats a story


def test_no_story_draws_twice_from_a_pool_but_the_numbers():
    """Two girls of one story could have one name: the entropy would still be right, the story would not."""
    for _, pools in plot_expressions():
        assert len(set(pools.values())) == len(pools) - 1, pools
        assert pools["n"] == pools["m"] == "number", "both owners draw from it, and may have equally many"
    for symbol, lines in rules().items():
        for line in lines:
            pools_here = [pool for pool in re.findall(r"\{\w:(\w+)\}", line) if pool != "number"]
            assert len(set(pools_here)) == len(pools_here), (symbol, line)


def test_the_package_reads_the_choices_that_were_made_where_they_were_made():
    for story in SAMPLE:
        assert readings(story.text) == [tuple(story.choices)]
        for wrong in (story.text[:-1], story.text + " ", story.text * 2):
            assert not readings(wrong)


# What a student may change: each ends in a sensible result or one sentence.


@pytest.fixture
def edit(monkeypatch):
    """Change a text of the grammar as a student would, and run all cells again."""

    def forget():
        for function in (corpus.alternatives, corpus.entries):
            function.cache_clear()

    def change(old: str, new: str, pool: str | None = None):
        before = corpus.grammar()
        (line,) = re.findall(rf"(?m)^{pool}:.*$", before) if pool else [before]
        assert old in line
        changed = before.replace(line, line.replace(old, new, 1))
        monkeypatch.setattr(corpus, "grammar", lambda: changed)
        forget()

    yield change
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    "old, new, pool, named",
    [
        ("{proud} {aside}", "{proud} {asid}", None, "{asid}"),
        ("{n:number}", "{n:numbr}", None, "numbr"),
        ("{?n} {T}.", "{?k} {T}.", None, "{k} recalls"),
        ("eight", "sixteen", "number", r"is (1[789]|2\d|3\d)"),
        ("eight", "twenty", "number", "twenty"),
        ("look: big", "mood: big", None, "mood twice"),
        ("Ben Carl", "Ben Ben", "boy", "boy"),
    ],
)
def test_a_mistake_in_the_grammar_is_one_sentence(edit, old, new, pool, named):
    edit(old, new, pool)
    with pytest.raises(ValueError, match=named) as caught:
        list(stories(2000))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lines, named",
    [(["Ben", "Carl", "Ben"], "twice"), (["{open {both}", "{open}"], "brace"), (["{open} both}"], "brace")],
)
def test_a_line_twice_and_a_lonely_brace_are_found(lines, named):
    with pytest.raises(ValueError, match=f"{named} .*in here"):
        check_lines(lines, "here")


def test_the_grammar_has_neither():
    for symbol, lines in rules().items():
        check_lines(lines, symbol)


def test_the_file_of_chapter_01_holds_the_first_stories():
    told = (DATA / "stories.txt").read_text(encoding="utf-8").splitlines()
    assert told == [story.text for story in stories(len(told))]


def test_six_less_seven_is_no_sixteen():
    six_less_seven = Count(((1, "n"), (-1, "k")), True)
    with pytest.raises(ValueError, match="six and seven is -1"):
        corpus.words_of(six_less_seven, {"n": ("six",), "k": ("seven",)})
    assert corpus.words_of(six_less_seven, {"n": ("six",), "k": ("six",)}) == "zero"


@pytest.mark.parametrize(
    "old, new, pool",
    [
        ("Anna ", "", "girl"),
        (' | "You look {mood}," said {A}.', "", None),
    ],
)
def test_another_grammar_has_another_floor_and_still_one_reading(edit, old, new, pool):
    before = list(stories(50))
    edit(old, new, pool)
    assert list(stories(50)) != before
    for story in stories(20, seed=2):
        assert readings(story.text) == [tuple(story.choices)]


class Words:
    encode = staticmethod(str.split)


def test_the_floor_counts_one_separator_a_story():
    some = SAMPLE[:10]
    tokens = sum(len(story.text.split()) + 1 for story in some)
    expected = pytest.approx(-sum(story.logprob for story in some) / tokens)
    assert floor_per_token(some, Words()) == floor_per_token(iter(some), Words()) == expected
    with pytest.raises(ValueError):
        floor_per_token([], Words())


def test_kinds_say_which_answers_are_sums():
    """An answer that repeats a number word of before may be a copy; one that repeats none is computed."""
    kinds = Counter(kind for story in SAMPLE for kind in story.kinds)
    assert set(kinds) == {"copied", "computed"} and min(kinds.values()) > len(SAMPLE) / 2
    for story in SAMPLE:
        assert story.answers
        for (start, end), kind in zip(story.answers, story.kinds, strict=True):
            before = re.findall(r"\w+", story.text[:start])
            assert kind == "computed" or story.text[start:end] in before, (story, start)
