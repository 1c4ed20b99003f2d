"""The first model in the page: JavaScript's ids, logits and probabilities are Python's; it writes from a folder, offline."""

import base64
import json

import numpy as np
import pytest
import torch
from browser import chromium, needs_chromium, opened, shot
from writer_weights import BEGIN, END, OUT

from course.paths import ROOT
from course.site.pictures import FIRST, recorded
from nanogpt.labs.corpora.stories import stories
from nanogpt.model import GPT, GPTConfig
from nanogpt.sampling import token_probs
from nanogpt.tokenizer import BPETokenizer

PAGE = """<!doctype html><html lang="en"><link rel="icon" href="data:,">
<section class="writer" data-beginning="One sunny day," hidden></section><script src="{}" defer></script></html>"""
TEXTS = [
    "One sunny day,",
    *(story.text for story in stories(3, seed=5)),
    "",
    "They'll  say: 'I'm 12345½'!\n\n \tTabs, and spaces   ",
    "Ærøskøbing, Ελλάδα, 東京 and a 🦉, in e\u0301 and \u00e9",
    "white\u00a0space\u0085of\u2003all\ufeffkinds\u200b\x1c!",
    "<|endoftext|> is text here",
    "aaaaaaaaaaaaaaaa hhhhhhhh      mmmm",
]


@pytest.fixture(scope="module")
def stored():
    """What the page loads: a tokenizer, and a model with the stored float16 weights in float32."""
    saved = json.loads(OUT.read_text(encoding="utf-8").removeprefix(BEGIN).removesuffix(END))
    shape = {name: value for name, value in saved["config"].items() if name != "sha256"}
    model = GPT(GPTConfig(**shape)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            numbers = np.frombuffer(base64.b64decode(saved["weights"].pop(name)), "<f2").astype("float32")
            p.copy_(torch.from_numpy(numbers).view_as(p))
    assert not saved["weights"]
    known = saved["tokenizer"]
    vocab = [token.encode("latin-1") for token in known["vocab"]]
    return BPETokenizer(vocab, known["pattern"], known["special"]), model


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The widget alone, on a page that is opened from a folder. It may ask no host for anything."""
    path = tmp_path_factory.mktemp("writer") / "index.html"
    path.write_text(PAGE.format((ROOT / "site/_static/writer.js").as_uri()), encoding="utf-8")
    with chromium() as window, opened("file://", within=window) as page:
        window.set_offline(True)
        page.goto(path.as_uri())
        yield page


@torch.no_grad()
def logits(model: GPT, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]))[0][0, -1:]


def test_the_stored_model_is_the_one_that_wrote_the_story_of_the_readme(stored):
    tokenizer, model = stored
    text = recorded(FIRST)["story"]["text"]
    ids = torch.tensor([[tokenizer.eot, *tokenizer.encode(text), tokenizer.eot]])
    loss = model(ids[:, :-1], ids[:, 1:])[1].item()
    assert loss < 0.7, "it was trained on other stories: course run 07 && python bench/writer_weights.py"


@needs_chromium
def test_the_tokenizer_gives_the_same_ids(stored, page):
    tokenizer, _ = stored
    each = "async all => {{ const {{ tokenizer }} = await writer.load(); return all.map(x => tokenizer.{}(x)); }}"
    ours = page.evaluate(each.format("encode"), TEXTS)
    assert ours == [tokenizer.encode(text) for text in TEXTS]
    assert page.evaluate(each.format("decode"), ours) == TEXTS


@needs_chromium
def test_the_model_gives_the_same_logits_whatever_its_cache_holds(stored, page):
    tokenizer, model = stored
    long = [tokenizer.eot, *tokenizer.encode("".join(TEXTS[1:4]))][: model.config.block_size]
    assert len(long) == model.config.block_size
    other = [*long[:20], *reversed(long[:20])]
    for ids in (long[:1], long[:6], long, other, other[:12], other[:12]):
        ours = page.evaluate("async ids => [...(await writer.load()).gpt.logits(ids)]", ids)
        assert (torch.tensor([ours]) - logits(model, ids)).abs().max() < 1e-3


@needs_chromium
@pytest.mark.parametrize("knobs", [(0.8, 8, 0.95), (0, 50, 1), (1, 1, 1), (3, 50, 0.5), (0.1, 50, 0.05)])
def test_the_knobs_do_what_chapter_08_s_do(stored, page, knobs):
    tokenizer, model = stored
    raw = logits(model, [tokenizer.eot, *tokenizer.encode(TEXTS[0])])
    options = dict(zip(("temperature", "topK", "topP"), knobs))
    ours = page.evaluate("([raw, options]) => writer.tokenProbs(raw, options)", [raw[0].tolist(), options])
    assert torch.allclose(torch.tensor([ours]) * 1.0, token_probs(raw, *knobs), atol=1e-6)


@needs_chromium
def test_it_loads_the_model_when_asked_and_writes_a_story_by_keyboard_from_a_folder(page):
    page.reload()
    scripts = "[...document.scripts].filter(script => script.src.endsWith('first_model.js')).length"
    assert page.evaluate(scripts) == 0, "a megabyte that nobody has asked for"
    page.get_by_label("beginning").fill("One rainy day, ")
    button = page.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.written').textContent.length > 40")
    page.keyboard.press("Enter")
    assert button.inner_text() == "Write", "the second press stops it"
    page.get_by_label("beginning").fill("One sunny day,")
    page.get_by_label("temperature").focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    assert page.locator("li:not(.cut)").count() == 1, "at temperature 0 one token can be drawn"
    button.press("Enter")
    page.get_by_text("The end.").wait_for()
    text = page.locator(".written").inner_text()
    assert text.startswith("One sunny day, ") and text.endswith(".") and 50 < len(text.split()) < 110, text
    assert page.evaluate(scripts) == 1
    shot(page, "writer")
