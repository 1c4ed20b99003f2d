"""The error of a loss is the scatter over documents; bits per byte count the bytes of the text."""

import random

import numpy as np
import pytest
from wording import in_our_words

from nanogpt.labs.evals.measures import bits_per_byte, mean_and_error, token_bytes
from nanogpt.tokenizer import BPETokenizer

EOT = 39


def test_the_standard_error_of_two_documents_by_hand():
    """With so few, the factor n / (n - 1) doubles the variance."""
    tokens, nats = np.array([EOT, 1, EOT, 1, EOT]), np.array([1.0, 1.0, 3.0, 3.0])
    mean, error = mean_and_error(nats, tokens, EOT)
    # sums 2 and 6, each of two tokens; the mean expects 4 twice
    assert mean == 2.0 and error == pytest.approx((((2 - 4) ** 2 + (6 - 4) ** 2) * 2 / 1) ** 0.5 / 4)
    assert np.isnan(mean_and_error(nats[:1], tokens[:2], EOT)[1]), "one document has no scatter"


def mixed_text() -> str:
    """100 kB of UTF-8 from characters of one, two, three and four bytes, spaces and line breaks."""
    dice = random.Random(0)
    ranges = (97, 26), (0xE0, 30), (0x3B1, 24), (0x430, 32), (0x4E00, 20000), (0xAC00, 11172), (0x1F300, 700)
    letters = [chr(begin + dice.randrange(n)) for begin, n in ranges for _ in range(600)]
    letters += [" ", "\n", "  "] * 200
    text = "".join(dice.choices(letters, k=45_000))
    assert len(text.encode()) > 100_000
    return text


def adds_up(tokenizer, text: str) -> None:
    ids, sizes = tokenizer.encode(text), token_bytes(tokenizer)
    assert sizes.shape == (tokenizer.vocab_size,) and sizes[tokenizer.eot] == 0
    assert sizes[ids].sum() == len(text.encode())
    decoded = sum(len(tokenizer.decode([i]).encode()) for i in ids)
    assert decoded > 1.1 * len(text.encode())  # the bug: half a character counts three bytes


def test_the_tokens_bytes_add_up_to_those_of_the_text():
    text = mixed_text()
    adds_up(BPETokenizer.train(text[:20_000], 600), text)


def test_gpt2s_tokens_bytes_add_up_to_those_of_the_text(gpt2_vocab):
    adds_up(BPETokenizer.gpt2(), mixed_text())


def test_bits_per_byte_are_the_same_for_two_tokenizers_that_code_alike():
    text = "the moon — 月 🌙 " * 50
    for tokenizer in (BPETokenizer([bytes([b]) for b in range(256)]), BPETokenizer.train(text, 270)):
        ids = np.array([tokenizer.eot, *tokenizer.encode(text)])
        nats = np.full(len(ids) - 1, len(text.encode()) * 2 * np.log(2) / (len(ids) - 1))  # two bits a byte
        assert bits_per_byte(nats, ids, token_bytes(tokenizer)) == pytest.approx(2)
    with pytest.raises(ValueError, match=in_our_words(bits_per_byte, "at least one token")):
        bits_per_byte(np.ones(1), np.array([1, tokenizer.eot]), token_bytes(tokenizer))
