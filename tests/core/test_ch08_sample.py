"""Chapter 08: sampling. The laws: the cache changes only the time; sampling changes nothing but its own generator."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanogpt import sampling
from nanogpt.labs.formats.hf import to_hf
from nanogpt.model import GPT, MLP, GPTConfig
from nanogpt.sampling import (
    KVCache,
    complete,
    draw,
    generate,
    load,
    read,
    stream_batch,
    stream_text,
    token_probs,
)
from nanogpt.tokenizer import BPETokenizer

CONFIG = GPTConfig(block_size=24, vocab_size=61, n_layer=3, n_head=2, n_embd=32)


def make(config=CONFIG, seed=0):
    """A random model whose context matters: as GPT-2 is initialised, it would repeat its last token for ever."""
    model = GPT(config, generator=gen(seed))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.mul_(30 if "c_attn" in name else 8)
            else:
                p.add_(0.02 * torch.randn(p.shape, generator=gen(1)))
    return model.eval()


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def ids(n, seed=0, vocab_size=61):
    return torch.randint(0, vocab_size, (n,), generator=gen(seed)).tolist()


@torch.no_grad()
def reference(model, prompt, n, pick):
    """What is written without any cache, from the rule alone; pick(logits of the last position) -> id."""
    limit, text = model.config.block_size, list(prompt)
    start = max(0, len(text) - limit)
    for _ in range(n):
        if len(text) - start > limit:
            start = len(text) - max(1, limit // 2)
        text.append(pick(model(torch.tensor([text[start:]]))[0][:, -1]))
    return text[len(prompt) :]


def greedy(logits):
    return logits.argmax().item()


def batched(model, prompts, n, **options):
    """The ids that continue each prompt, and None after a stop."""
    return list(map(list, zip(*stream_batch(model, prompts, n, **options))))


# --- the cache changes only the time ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["lively", "lively, bare", "as GPT-2 begins"])
def model_and_tolerance(request):
    """A model and the largest difference that rounding explains: random large weights amplify it in float32."""
    if request.param == "as GPT-2 begins":
        return GPT(CONFIG, generator=gen()), 1e-6
    bare = request.param == "lively, bare"
    return make(replace(CONFIG, bias=not bare, flash=not bare)).double(), 1e-12


def close(a, b, tolerance):
    return (a - b).abs().max().item() < tolerance


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 24), max_size=5))
@example(cuts=list(range(24)))  # token by token
def test_any_cutting_into_chunks_gives_the_logits_without_a_cache(model_and_tolerance, cuts):
    model, tolerance = model_and_tolerance
    idx = torch.tensor([ids(24), ids(24, seed=1)])
    with torch.no_grad():
        expected = model(idx)[0]
    cache = KVCache(model, 2, 24)
    for start, end in pairwise(sorted({0, 24, *cuts})):
        assert close(read(model, cache, idx[:, start:end].tolist()), expected[:, end - 1], tolerance)
    assert cache.lengths == [24, 24]


@pytest.mark.parametrize("n_prompt", [5, 60])
def test_ids_equal_those_without_a_cache_far_past_the_context(n_prompt):
    model, prompt, generator = make().double(), ids(n_prompt), gen(3)
    expected = reference(model, prompt, 80, greedy)
    assert len(set(expected)) > 8, "a text that repeats itself would prove little"
    assert generate(model, prompt, 80, temperature=0) == expected
    knobs = {"temperature": 0.9, "top_k": 20, "top_p": 0.9}
    expected = reference(model, prompt, 80, lambda logits: draw(token_probs(logits, **knobs), generator)[0])
    assert generate(model, prompt, 80, generator=gen(3), **knobs) == expected


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_tiny_contexts(block_size):
    model = make(replace(CONFIG, block_size=block_size)).double()
    assert generate(model, ids(4), 12, temperature=0) == reference(model, ids(4), 12, greedy)


def test_batched_prompts_of_different_lengths_equal_each_alone_past_the_context():
    model = make().double()
    prompts = [ids(n, seed=n) for n in (1, 7, 24, 40, 12)]
    alone = [generate(model, prompt, 60, temperature=0) for prompt in prompts]
    assert batched(model, prompts, 60, temperature=0) == alone


def test_padding_changes_no_logit(model_and_tolerance):
    model, tolerance = model_and_tolerance
    prompts = [ids(3), ids(17, seed=1), ids(1, seed=2)]
    cache = KVCache(model, 3, 24)
    cache.keys.fill_(1e3), cache.values.fill_(1e3)  # what the memory held before must not matter
    logits = [read(model, cache, prompts), read(model, cache, [[4], [5], [6]])]
    assert cache.lengths == [4, 18, 2]
    for b, (prompt, new) in enumerate(zip(prompts, (4, 5, 6))):
        with torch.no_grad():
            expected = model(torch.tensor([[*prompt, new]]))[0][0]
        assert close(logits[0][b], expected[-2], tolerance)
        assert close(logits[1][b], expected[-1], tolerance)


def test_the_cache_serves_whatever_the_model_computes(monkeypatch):
    """One forward for both: a student's other MLP changes the logits with the cache as it does those without."""
    model, text = make().double(), ids(12)
    before = read(model, KVCache(model, 1, 24), [text])
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.c_proj(self.c_fc(x).relu()))
    with torch.no_grad():
        expected = model(torch.tensor([text]))[0][:, -1]
    cache = KVCache(model, 1, 24)
    read(model, cache, [text[:-1]])
    after = read(model, cache, [text[-1:]])
    assert close(after, expected, 1e-12) and not close(after, before, 1e-3)


def test_padded_rows_are_never_seen():
    """A vocabulary padded for speed (chapter 13) samples as the same model without padding."""
    model = make().double()
    padded = GPT(replace(CONFIG, padded_vocab_size=128)).double()
    with torch.no_grad():
        for p, q in zip(padded.parameters(), model.parameters()):
            p[: len(q)] = q
    expected = generate(model, ids(5), 40, generator=gen())
    assert generate(padded, ids(5), 40, generator=gen()) == expected


def test_bfloat16_weights_decode_near_float32():
    """Half the bytes to read. The law: at GPT-2's initialisation, logits within 2% of the largest float32 logit."""
    model = GPT(CONFIG, generator=gen())
    exact = read(model, KVCache(model, 1, 24), [ids(20)])
    model = model.to(torch.bfloat16)
    cache = KVCache(model, 1, 24)
    read(model, cache, [ids(20)[:-1]])
    rounded = read(model, cache, [ids(20)[-1:]])
    assert cache.keys.dtype == rounded.dtype == torch.bfloat16
    assert 0 < (rounded.float() - exact).abs().max() < 0.02 * exact.abs().max()
    assert len(generate(model, ids(5), 40, top_p=0.9)) == 40


# --- sampling changes nothing but its own generator ------------------------------------------------------------


def all_that_training_reads(model) -> dict:
    return {
        "modes": [m.training for m in model.modules()],
        "weights": [(p.tolist(), p.grad.tolist(), p.requires_grad) for p in model.parameters()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
    }


def test_no_random_state_no_mode_no_weight_and_no_gradient_is_touched():
    """So training goes on as if there had been no sample, even one between `backward` and the optimizer's step."""
    model = make(replace(CONFIG, dropout=0.5))
    model.transformer.h[1].train()  # a mixed mode, which train()/eval() could not restore
    idx = torch.tensor([ids(13)])
    model(idx[:, :-1], idx[:, 1:])[1].backward()
    before = all_that_training_reads(model)
    for _ in stream_batch(model, [ids(5)], 40, generator=gen(2)):
        assert [m.training for m in model.modules()] == before["modes"]
        assert torch.is_grad_enabled()
    generate(model, ids(5), 5)  # without a generator as well
    assert all_that_training_reads(model) == before


def test_dropout_is_never_on():
    model = make(replace(CONFIG, dropout=0.5))
    expected = generate(model.eval(), ids(5), 40, generator=gen())
    assert generate(model.train(), ids(5), 40, generator=gen()) == expected


def test_greedy_draws_nothing_and_sampling_one_number_a_token():
    model, g = make(), gen(2)
    generate(model, ids(5), 20, temperature=0, generator=g)
    assert torch.equal(g.get_state(), gen(2).get_state())
    generate(model, ids(5), 20, generator=g)
    other = gen(2)
    torch.rand(20, generator=other)
    assert torch.rand(1, generator=g) == torch.rand(1, generator=other)


# --- which token -----------------------------------------------------------------------------------------------

KNOBS = {
    "temperature": st.floats(0.1, 3),
    "top_k": st.none() | st.integers(1, 80),
    "top_p": st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0]),
}


# derandomize: a mass of top_p to the last bit could go either way
@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), **KNOBS)
@example(seed=0, temperature=0.5, top_k=13, top_p=1.0)  # masses that reach 1 by rounding
def test_same_distribution_as_transformers(seed, temperature, top_k, top_p):
    t = pytest.importorskip("transformers")
    logits, text = 4 * torch.randn(3, 61, generator=gen(seed)), torch.tensor([ids(9, s) for s in range(3)])
    chain = [t.TemperatureLogitsWarper(temperature)]
    chain += [t.TopKLogitsWarper(top_k)] if top_k else []
    chain += [t.TopPLogitsWarper(top_p)] if top_p < 1 else []
    theirs = logits.clone()
    for step in chain:
        theirs = step(text, theirs)
    theirs = theirs.softmax(-1)
    ours = token_probs(logits, temperature, top_k, top_p)
    assert torch.equal(ours > 0, theirs > 0) and torch.allclose(ours, theirs, atol=1e-6)


def test_limits_are_greedy_and_ties_stay_together():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]])
    assert token_probs(logits, temperature=0).tolist() == [[0, 1, 0, 0, 0]]
    assert token_probs(logits, top_k=1)[0].tolist() == [0, 0.5, 0, 0.5, 0]
    assert (token_probs(logits, top_k=3) > 0).tolist() == [[False, True, True, True, True]]
    assert (token_probs(logits, top_p=1e-9) > 0).sum() == 2
    assert torch.equal(token_probs(logits, top_k=99), logits.softmax(-1))
    assert token_probs(logits[:, :3], temperature=1e-30).tolist() == [[0, 1, 0]]


@settings(max_examples=200, deadline=None)
@given(
    p=st.lists(st.sampled_from([0.0, 1e-12, 0.1, 1.0]), min_size=1, max_size=50).filter(sum),
    seed=st.integers(0, 9999),
)
def test_draw_never_gives_a_token_of_probability_zero(p, seed):
    assert all(p[i] > 0 for i in draw(torch.tensor([p] * 20), gen(seed)))


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_draw_at_the_ends_of_the_ruler(u, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *a, **k: torch.full((1, 1), u))
    p = torch.tensor([[0.0, 0.0, 0.3, 0.1, 0.6, 0.0]])
    assert draw(p, gen()) == [2 if u == 0 else 4]


def test_draw_follows_the_probabilities():
    p = torch.randn(40, generator=gen()).softmax(0)
    n = 200_000
    frequency = torch.tensor(draw(p.expand(n, 40), gen(1))).bincount(minlength=40) / n
    assert ((frequency - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()


@pytest.mark.parametrize("temperature", [0, 1e-30, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_no_longer_one_is_named(value, temperature):
    model = make()
    model.transformer.ln_f.weight.data[0] = value
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        generate(model, [1], 2, temperature=temperature)


@pytest.mark.parametrize(
    "bad, name",
    [
        ({"temperature": 0, "top_k": -5}, "top_k=-5"),  # greedy looks at them as well
        ({"temperature": 0, "top_p": 7}, "top_p=7"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": 1e-300}, "temperature=1e-300"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"prompt": []}, "no tokens"),
        ({"prompt": [61]}, "61"),
    ],
)
def test_bad_options_are_named(bad, name):
    with pytest.raises(ValueError, match=name):
        generate(make(), **{"prompt": [1], "max_new_tokens": 2} | bad)


# --- stop, stream, text ----------------------------------------------------------------------------------------


def test_stop_tokens_end_a_text_and_are_not_part_of_it():
    model = make().double()
    whole = generate(model, ids(5), 60, temperature=0)
    stop = {whole[30], whole[33]}
    first = min(whole.index(i) for i in stop)
    assert generate(model, ids(5), 60, temperature=0, stop=stop) == whole[:first]
    prompts = [ids(5), ids(9, seed=3)]
    other = generate(model, prompts[1], 60, temperature=0, stop=stop)
    both = batched(model, prompts, 60, temperature=0, stop=stop)
    assert [[i for i in text if i is not None] for text in both] == [whole[:first], other]


def test_lengths_and_laziness():
    model, calls = make(), []
    model.transformer.ln_f.register_forward_hook(lambda *_: calls.append(1))
    assert generate(model, [1], 0) == [] and not calls
    tokens = stream_batch(model, [[1]], 10, generator=gen())
    first = [next(tokens)[0] for _ in range(3)]
    assert len(calls) == 3, "one call of the model per token, made when the token is asked for"
    assert first == generate(model, [1], 3, generator=gen())


def test_ids_of_a_padded_vocabulary_are_never_chosen():
    model = make()
    assert max(generate(model, [1], 100, temperature=5.0, vocab_size=30, generator=gen())) < 30
    assert max(generate(model, [1], 100, temperature=5.0, generator=gen())) >= 30


@pytest.fixture(scope="module")
def byte_tokenizer():
    return BPETokenizer.train("one", 257)


def streamed(tokenizer, tokens):
    """What stream_text makes of these tokens, whatever model wrote them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "stream_batch", lambda *args, **options: ([i] for i in tokens))
        return stream_text(make(replace(CONFIG, vocab_size=tokenizer.vocab_size)), tokenizer, "", 99)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60) | st.text(max_size=20).map(lambda s: s.encode("utf-8", "ignore")))
def test_streamed_pieces_join_to_the_decoded_text(byte_tokenizer, data):
    by_byte = {byte_tokenizer.tokens[i]: i for i in range(256)}
    tokens = [by_byte[bytes([b])] for b in data]
    pieces = list(streamed(byte_tokenizer, tokens))
    assert "".join(pieces) == byte_tokenizer.decode(tokens)
    assert all(pieces)


def test_pieces_come_when_their_bytes_do(byte_tokenizer):
    seen = []

    def tokens():
        for i in byte_tokenizer.encode("abébc"):
            seen.append(i)
            yield i

    pieces = streamed(byte_tokenizer, tokens())
    assert [next(pieces) for _ in range(3)] == ["a", "b", "é"] and len(seen) == 4


def test_complete_begins_with_eot_and_ends_with_it(byte_tokenizer):
    def completed(prompt):
        return complete(model, byte_tokenizer, prompt, 2000, temperature=5.0, generator=gen())

    model, prompt = make(replace(CONFIG, vocab_size=257)), [256, *byte_tokenizer.encode("Hi")]
    tokens = generate(model, prompt, 2000, temperature=5.0, stop={256}, generator=gen())
    assert len(tokens) < 2000, "without an end, nothing is proved of it"
    assert completed("Hi") == byte_tokenizer.decode(tokens)
    assert completed("<|endoftext|>Hi") == completed("Hi"), "one is enough"


def test_complete_refuses_a_foreign_tokenizer(byte_tokenizer):
    with pytest.raises(ValueError, match="257 tokens, the model 61"):
        complete(make(), byte_tokenizer, "Hi", 5)


# --- the command line ------------------------------------------------------------------------------------------


def test_gpt2s_tokenizer_is_taken_for_gpt2s_vocabulary(tmp_path, gpt2_vocab):
    config = replace(CONFIG, vocab_size=50304, n_layer=1)
    to_hf(GPT(config, generator=gen()), tmp_path)
    model, tokenizer = load(str(tmp_path))
    assert tokenizer.vocab_size == 50257 and model.config == config


# --- GPT-2's size ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_same_text_as_transformers_generate(tmp_path):
    """A model of four GPT-2 layers, random but lively, through disk: greedy ids equal transformers' own."""
    transformers = pytest.importorskip("transformers")
    model = make(GPTConfig(n_layer=4))
    to_hf(model, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    prompt = ids(20, vocab_size=50257)
    out = theirs.generate(
        torch.tensor([prompt]), do_sample=False, min_new_tokens=48, max_new_tokens=48, pad_token_id=50256
    )[0, 20:].tolist()
    assert len(set(out)) > 10
    assert generate(model, prompt, 48, temperature=0) == out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_law_holds_and_the_seed_means_the_same_text():
    model = make().double()
    prompts = [ids(n, seed=n) for n in (1, 7, 24, 40)]
    cpu = [generate(model, p, 60, generator=gen()) for p in prompts]
    model = model.cuda()
    assert [generate(model, p, 60, generator=gen()) for p in prompts] == cpu
    alone = [generate(model, p, 60, temperature=0) for p in prompts]
    assert batched(model, prompts, 60, temperature=0) == alone
