"""Figures of chapter 01."""

import html
import random
import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

import matplotlib.pyplot as plt
import regex

from course.figures import widgets

PASTEL = ["#cfe2f3", "#d9ead3", "#fff2cc", "#ead1dc", "#d9d2e9", "#d0e0e3"]
RED = "#f4a6a0"
LONGEST = 300  # characters that the widget reads
GREETINGS = {  # one question in five languages
    "English": "Good morning, how are you?",
    "German": "Guten Morgen, wie geht es dir?",
    "Russian": "Доброе утро, как дела?",
    "Hindi": "शुभ प्रभात, आप कैसे हैं?",
    "Chinese": "早上好，你好吗？",
}


def visible(piece: bytes) -> str:
    """A token for human eyes: spaces as ·, line ends as ↵, and in hex what is not UTF-8 by itself."""
    try:
        return piece.decode("utf-8").replace(" ", "·").replace("\n", "↵")
    except UnicodeDecodeError:
        return piece.hex(" ")


def listed(tokens: Iterable[bytes]) -> str:
    """Tokens for human eyes, with a bar between them."""
    return " | ".join(map(visible, tokens))


def drawable(piece: bytes) -> str:
    """As `visible`, and in hex as well what the figures' font has no picture for."""
    label = visible(piece)
    no_picture = any("\u0900" <= c < "\u1d00" or c >= "\u2e80" for c in label)
    return piece.hex(" ") if no_picture else label


def timed(what: str, function, *arguments):
    """What the function returns; prints how many seconds it took."""
    start = time.perf_counter()
    result = function(*arguments)
    print(f"{time.perf_counter() - start:7.3f} s  {what}")
    return result


def gpt2_and_published(tokenizer_class):
    """GPT-2's tokenizer, ours and tiktoken's; None twice where its vocabulary is not to be had, with what was recorded."""
    import tiktoken

    try:
        return tokenizer_class.gpt2(), tiktoken.get_encoding("gpt2")
    except OSError as error:
        print(f"{error}\nrecorded: 12 34, 123 45, 123 456; ·2022 is one token, ·2023 is two")
        return None, None


def letter_noise(n: int) -> list[bytes]:
    """Random strings of a few letters and spaces, the same ones each time."""
    rng = random.Random(0)
    return [bytes(rng.choices(b" aehnorst", k=rng.randrange(1, 40))) for _ in range(n)]


def strange_texts(n: int, special: str) -> list[str]:
    """Random texts of letters of many scripts, emoji, odd white space, apostrophes and a special token's name."""
    rng = random.Random(1)
    alphabet = [*map(chr, range(0x250)), *"写字アब🙂👩\u200d🚀\u2028\u3000", *[" ", "\n", "'s", special] * 40]
    return ["".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(n)]


def bytes_and_words(sentence: str, words: set[str]):
    """A sentence cut into its bytes, and into words, of which those that are not in `words` are red."""
    letters = [bytes([b]) for b in sentence.encode()]
    pieces = sentence.strip(".").encode().split()
    unknown = set(pieces) - {word.encode() for word in words}
    return cuts({f"{len(letters)} bytes": letters, f"{len(pieces)} words": pieces}, red=unknown)


def cuts(rows: dict[str, list[bytes]], red=(), size=(6.5, 1.5)):
    """One row of boxes for each way to cut a text, as wide as what is written in them; pieces in `red` are red."""
    fig, ax = plt.subplots(figsize=size)
    for y, pieces in enumerate(rows.values()):
        x = 0
        for i, piece in enumerate(pieces):
            label = drawable(piece)
            face = RED if piece in red else PASTEL[i % 5]
            ax.add_patch(plt.Rectangle((x, y), max(1, len(label)), 0.7, facecolor=face, edgecolor="white"))
            where = x + max(1, len(label)) / 2, y + 0.35
            ax.text(*where, label, ha="center", va="center", family="monospace", fontsize=8)
            x += max(1, len(label))
        ax.set_xlim(0, max(x, ax.get_xlim()[1]))
    ax.set(ylim=(len(rows) - 0.1, -0.2), xticks=[])
    ax.set_yticks([y + 0.35 for y in range(len(rows))], rows)
    bare(ax)
    return fig


def bare(ax) -> None:
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def bytes_per_token(sizes, curve, recorded):
    """Bytes per token against the size of the vocabulary: stories, and Shakespeare as recorded."""
    fig, ax = plt.subplots()
    ax.plot(sizes, curve, "o-", label="stories, measured here")
    ax.plot(recorded["vocab"], recorded["bytes_per_token"], "s-", label="Shakespeare, recorded")
    ax.plot(50_256, recorded["gpt2_bytes_per_token"], "k*", ms=10, label="GPT-2's tokens on Shakespeare")
    ax.set(xscale="log", xlabel="vocabulary (tokens)", ylabel="bytes per token", ylim=(0, None))
    ax.set_xticks([256, 1024, 4096, 16384, 50256], ["256", "1,024", "4,096", "16,384", "50,256"])
    ax.minorticks_off()
    ax.legend(loc="lower right")
    return fig


def token_counts(lengths):
    """How many tokens each number from 0 to 9999 takes: a row for each hundred."""
    fig, ax = plt.subplots(figsize=(5, 4))
    picture = ax.imshow(lengths, cmap="viridis", vmin=1, vmax=3, origin="lower")
    ax.set(
        xlabel="last two digits",
        ylabel="the digits before",
        title="tokens for the numbers 0 to 9999, each after a space",
    )
    ax.grid(False)
    fig.colorbar(picture, ticks=[1, 2, 3], shrink=0.8)
    return fig


def merge_steps(text: str, tokenizer) -> list[list[bytes]]:
    """The pieces of `text` at the start and after each merge, in order of rank."""
    chunks = [[bytes([b]) for b in chunk.encode()] for chunk in regex.findall(tokenizer.pattern, text)]
    steps = []
    while True:
        steps.append([piece for chunk in chunks for piece in chunk])
        joined = {a + b for chunk in chunks for a, b in pairwise(chunk)} & tokenizer.ranks.keys()
        if not joined:
            return steps
        token = min(joined, key=tokenizer.ranks.get)
        for chunk in chunks:
            for i in range(len(chunk)):
                if len(pair := chunk[i : i + 2]) == 2 and pair[0] + pair[1] == token:
                    chunk[i : i + 2] = [token]


def growing_tokens(text: str, tokenizer):
    """Five of the text's steps, from single bytes to the end."""
    steps = merge_steps(text, tokenizer)
    shown = [round(k * (len(steps) - 1) / 4) for k in range(5)]
    return cuts({f"{k} merges: {len(steps[k])} tokens": steps[k] for k in shown}, size=(6.5, 2.6))


def merging_widget(text: str, tokenizer):
    """A field for a text and a slider for how many of its merges are done."""
    steps_of = lru_cache(1)(
        lambda text: merge_steps(text, tokenizer)
    )  # a slider asks for the same text again

    def draw(text: str, merges: int) -> str:
        if not text:
            raise ValueError("an empty text has no bytes and no tokens: type something")
        steps = steps_of(text[:LONGEST])
        done, last = min(merges, len(steps) - 1), len(steps) - 1
        box = "<span style='background:{};color:black;padding:2px 3px;font-family:monospace'>{}</span>"
        boxes = [box.format(PASTEL[tokenizer.ranks[p] % 6], html.escape(visible(p))) for p in steps[done]]
        cut = f" (the first {LONGEST} characters)" if len(text) > LONGEST else ""
        said = (
            f"{len(steps[done])} tokens after {done} of {last} merges"
            + ", which are all" * (done == last)
            + cut
        )
        return f"<p>{said}</p><p>{' '.join(boxes)}</p>"

    return widgets.explorer(draw, text=text, merges=(8, 0, 60))
