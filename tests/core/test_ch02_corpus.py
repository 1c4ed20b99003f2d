import hashlib
import itertools
import math
import random
import re
import statistics
import subprocess
import sys
from collections import Counter

import pytest

from course.paths import ROOT
from nanogpt.labs.corpora import stories as corpus
from nanogpt.labs.corpora import stories as grammar_module
from nanogpt.labs.corpora.stories import NUMBERS, Count, Story, entropy, rules, stories, tell
from nanogpt.labs.evals.floor import check_lines, floor_per_token, readings

DATA = ROOT / "data"
SAMPLE = list(stories(600, seed=11))


# An independent reader: templates become regular expressions, facts named groups, and what a fact decides is
# checked afterwards. It shares the grammar's text with nanogpt.labs.corpora.stories, and none of its code.


def forms(pool: str) -> dict[str, str]:
    """First form → last form, for every entry of a pool."""
    return {entry.split("/")[0]: entry.split("/")[-1] for entry in rules()[pool]}


LABEL = itertools.count()


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
        facts, options, answers = {}, [len(rules()["story"])], []
        for _, group, words in said:
            kind, what = group.split("_")[0], group[group.index("_") + 1 : group.rindex("_")]
            if kind == "branch":
                options.append(len(rules()[what]))
            elif kind == "draw":
                facts[what] = words
                options.append(len(forms(pools[what])))
            elif kind == "recall":
                key, _, form = what.partition("X")
                assert words == (forms(pools[key])[facts[key]] if form else facts[key]), (group, words, text)
            else:
                value = {key: NUMBERS.index(word) for key, word in facts.items() if key.islower()}
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
        for plot in rules()["story"]:
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


def can_be_mistaken(first: str, second: str) -> bool:
    return all(one & two for one, two in zip(word_sets(first), word_sets(second)))


def test_no_alternative_can_be_mistaken_for_another_nor_for_its_beginning():
    """So the choices follow from the text for all stories, not only for sampled ones.

    A reader who goes from left to right knows each alternative by its words, and then where it ends.
    """
    for symbol in set(rules()) - {"story"}:
        for first, second in itertools.combinations(rules()[symbol], 2):
            assert not can_be_mistaken(first, second), (
                f"two readings: {symbol} may be {first!r} or {second!r}"
            )
    for one, two in itertools.combinations([re.findall(r"\w+", plot) for plot in rules()["story"]], 2):
        x, y = next(
            (x, y) for x, y in zip(one, two) if x != y
        )  # the first sentences in which the plots differ
        for first, second in itertools.product(rules()[x], rules()[y]):
            assert not can_be_mistaken(first, second), f"two readings: {x} {first!r} or {y} {second!r}"


def test_pools_are_prefix_free():
    for pool in set(re.findall(r"\{\w:(\w+)\}", str(rules()))):
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
    for plot in rules()["story"]:
        pools: dict[str, str] = {}
        regex_of_plot = [regex_of(symbol, pools) for symbol in re.findall(r"\{(\w+)\}", plot)]
        assert regex_of_plot and len(set(pools.values())) == len(pools) - 1, plot
        assert pools["n"] == pools["m"] == "number", "both owners draw from it, and may have equally many"
    for symbol, lines in rules().items():
        for line in lines:
            pools_here = [pool for pool in re.findall(r"\{\w:(\w+)\}", line) if pool != "number"]
            assert len(set(pools_here)) == len(pools_here), (symbol, line)


def test_the_package_reads_what_the_independent_reader_reads():
    for story in SAMPLE[:80]:
        options, _, _ = choices_in(story.text)
        found = readings(story.text)
        assert len(found) == 1 and sorted(k for _, k in found[0]) == sorted(options)
        assert all(0 <= at <= len(story.text) for at, _ in found[0])
        assert (
            not readings(story.text[:-1]) and not readings(story.text + " ") and not readings(story.text * 2)
        )


def test_choices_stand_where_their_words_begin():
    told = Story()
    tell("open", random.Random(0), told)
    assert told.choices[0] == (0, 4)
    for key in "ABP":
        at = [at for at, _ in told.choices if told.text.startswith(told.facts[key][0], at)]
        assert at, (key, told)


# What a student may change: each ends in a sensible result or one sentence.


@pytest.fixture
def edit(monkeypatch):
    """Change a text of the grammar as a student would, and run all cells again."""

    def forget():
        for function in (grammar_module.alternatives, corpus.entries):
            function.cache_clear()

    def change(old: str, new: str, pool: str | None = None):
        before = grammar_module.grammar()
        (line,) = re.findall(rf"(?m)^{pool}:.*$", before) if pool else [before]
        assert old in line
        changed = before.replace(line, line.replace(old, new, 1))
        monkeypatch.setattr(grammar_module, "grammar", lambda: changed)
        forget()

    yield change
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    ("old", "new", "pool", "named"),
    [
        ("{proud} {aside}", "{proud} {asid}", None, "{asid}"),
        ("{n:number}", "{n:numbr}", None, "numbr"),
        ("her {?n}", "her {?n*2}", None, r"{\?n\*2}"),
        ("{?n} {T}.", "{?k} {T}.", None, "{k} recalls"),
        ("{A} came", "{Q} came", None, "{Q} recalls"),
        ("eight", "sixteen", "number", r"is (1[789]|2\d|3\d)"),
        ("one two", "nine ten", "some", r"(nine|ten) is (-\d|1\d)"),
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
    ("lines", "message"),
    [
        (["Ben", "Carl", "Ben"], r"two readings of one text: 'Ben' is twice in here"),
        (["{open {both}", "{open}"], r"a brace is missing its partner in here"),
        (["{open} both}"], r"a brace is missing its partner in here"),
    ],
)
def test_a_line_twice_and_a_lonely_brace_are_found(lines, message):
    with pytest.raises(ValueError, match=message):
        check_lines(lines, "here")


def test_the_grammar_has_neither():
    for symbol, lines in rules().items():
        check_lines(lines, symbol)


def test_the_file_of_chapter_01_holds_the_first_stories():
    told = (DATA / "stories.txt").read_text(encoding="utf-8").splitlines()
    assert told == [story.text for story in stories(len(told))]


def test_six_less_seven_is_no_sixteen():
    six_less_seven = Count(((1, "n"), (-1, "k")), True)
    with pytest.raises(ValueError, match=r"six and seven is -1; NUMBERS holds zero to sixteen"):
        corpus.words_of(six_less_seven, {"n": ("six",), "k": ("seven",)})
    assert corpus.words_of(six_less_seven, {"n": ("six",), "k": ("six",)}) == "zero"


@pytest.mark.parametrize(
    ("old", "new", "pool"),
    [
        ("Anna", "Ada", "girl"),
        ("Anna ", "", "girl"),
        ("two three", "three", "number"),
        ("bear", "ape bear", "animal"),
        (' | "You look {mood}," said {A}.', "", None),
    ],
)
def test_another_grammar_has_another_floor_and_still_one_reading(edit, old, new, pool):
    before = list(stories(50))
    edit(old, new, pool)
    assert list(stories(50)) != before
    for story in stories(20, seed=2):
        [found] = readings(story.text)
        assert -sum(math.log(options) for _, options in found) == pytest.approx(story.logprob)


def test_answers_are_number_words_and_every_story_has_some():
    for story in SAMPLE:
        assert story.answers and len(story.kinds) == len(story.answers)
        for start, end in story.answers:
            assert story.text[start:end] in NUMBERS
            assert not story.text[start - 1].isalpha() and not story.text[end].isalpha()


class Words:
    encode = staticmethod(str.split)


def test_the_floor_counts_one_separator_a_story():
    some = SAMPLE[:10]
    tokens = sum(len(story.text.split()) + 1 for story in some)
    assert floor_per_token(some, Words()) == pytest.approx(-sum(story.logprob for story in some) / tokens)
    assert floor_per_token(iter(some), Words()) == floor_per_token(some, Words())
    with pytest.raises(ValueError):
        floor_per_token([], Words())


def test_kinds_say_which_answers_are_sums():
    """An answer that repeats a number word of before may be a copy; one that repeats none is computed."""
    kinds = Counter(kind for story in SAMPLE for kind in story.kinds)
    assert set(kinds) == {"copied", "computed"} and min(kinds.values()) > len(SAMPLE) / 2
    for story in SAMPLE:
        for (start, end), kind in zip(story.answers, story.kinds):
            before = re.findall(r"\w+", story.text[:start])
            assert kind == "computed" or story.text[start:end] in before, (story, start)


def test_telling_stories_needs_no_tokenizer_and_no_torch():
    """evals.py and a GPU server with ready shards: neither has regex or tiktoken."""
    code = "import sys; sys.modules |= dict.fromkeys(['regex', 'tiktoken', 'torch']); import nanogpt.labs.corpora.stories as c; c.entropy()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
