"""Chapter 24: Llama and Qwen3 are those of transformers, in logits and gradients, and all that takes a GPT takes them."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from nanogpt.labs.llama.model import Llama, LlamaConfig
from nanogpt.labs.llama.pretrained import config_from_llama, hf_name, llama_from_hf, llama_to_hf
from nanogpt.sampling import KVCache, generate, read
from nanogpt.training import train_step

TINY = LlamaConfig(64, 100, n_layer=2, n_head=4, n_kv_head=2, n_embd=48, n_hidden=80, head_size=16)
KINDS = {"llama": TINY, "qwen3": replace(TINY, qk_norm=True), "tied": replace(TINY, tied=True)}


def new(config=TINY, seed=0) -> Llama:
    return Llama(config, torch.Generator().manual_seed(seed))


def ids(T=40, B=2) -> torch.Tensor:
    return torch.randint(100, (B, T), generator=torch.Generator().manual_seed(1))


# The model


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_changes_nothing(kind):
    model, x = new(KINDS[kind]).eval(), ids()
    changed = x.clone()
    changed[:, 30] = (x[:, 30] + 1) % 100
    with torch.no_grad():
        a, b = model(x)[0], model(changed)[0]
    assert torch.allclose(a[:, :30], b[:, :30], atol=1e-5) and not torch.allclose(a[:, 30:], b[:, 30:])


def test_the_seed_decides_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one = new()
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(one.parameters(), new().parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.lm_head.weight, new(seed=1).lm_head.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_cache_as_without(kind):
    model, x = new(KINDS[kind]).eval(), ids(B=3).tolist()
    cache = KVCache(model, B=3, size=64)
    assert cache.keys.shape == (2, 3, 2, 64, 16), "two heads of keys, not four"
    texts = [x[0][:7], x[1][:12], x[2][:3]]
    read(model, cache, texts)
    for step in range(12, 20):  # every text goes on at its own position
        texts = [[*text, row[step]] for text, row in zip(texts, x)]
        logits = read(model, cache, [text[-1:] for text in texts])
    for text, found in zip(texts, logits):
        with torch.no_grad():
            alone = model(torch.tensor([text]))[0][0, -1]
        assert torch.allclose(found, alone, atol=1e-4)


def test_the_sampler_and_the_training_step_take_it():
    model = new()
    greedy, x = [5], ids(16)
    for _ in range(6):
        with torch.no_grad():
            greedy.append(model.eval()(torch.tensor([greedy]))[0][0, -1].argmax().item())
    assert generate(model, [5], 6, temperature=0) == greedy[1:]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = [train_step(model.train(), optimizer, [(x[:, :-1], x[:, 1:])]).item() for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


# The weights of others


@pytest.mark.parametrize("kind", KINDS)
def test_written_and_read_it_is_the_same(tmp_path, kind):
    model = new(KINDS[kind]).eval()
    llama_to_hf(model, tmp_path)
    again = llama_from_hf(tmp_path)
    assert again.config == KINDS[kind] and not again.training
    with torch.no_grad():
        assert torch.equal(model(ids())[0], again(ids())[0])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    names = "Qwen3" if kind == "qwen3" else "Llama"
    config = getattr(transformers, f"{names}Config")(
        vocab_size=100, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=kind == "tied",
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"}, rms_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{names}ForCausalLM")(config).eval()
    with torch.no_grad():  # large enough that a mistake shows, also in the norms
        for p in theirs.parameters():
            p.mul_(8) if p.dim() == 2 else p.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, x = llama_from_hf(tmp_path / "theirs"), ids()
    logits, loss = ours(x[:, :-1], x[:, 1:])
    expected = theirs(input_ids=x[:, :-1])
    assert torch.allclose(logits, expected.logits, atol=1e-4 * expected.logits.abs().max().item())
    loss.backward()
    F.cross_entropy(expected.logits.flatten(0, 1), x[:, 1:].flatten()).backward()
    gradients = {hf_name(name): p.grad for name, p in ours.named_parameters()}
    assert gradients.keys() == {name for name, _ in theirs.named_parameters()}
    for name, p in theirs.named_parameters():
        largest = p.grad.abs().max().item()
        assert torch.allclose(gradients[name], p.grad, atol=1e-3 * largest), name
    llama_to_hf(ours, tmp_path / "ours")
    again = getattr(transformers, f"{names}ForCausalLM").from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert torch.allclose(again(input_ids=x).logits, theirs(input_ids=x).logits, atol=1e-5)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model_type": "mistral"}, "'mistral'"),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_it_does_not_have_is_refused(tmp_path, change, says):
    llama_to_hf(new(), tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match=says):
        config_from_llama(hf | change)


def test_settings_that_old_files_lack_have_the_defaults_of_transformers():
    transformers = pytest.importorskip("transformers")
    hf = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    hf |= {"num_hidden_layers": 2, "vocab_size": 97, "head_dim": None, "pad_token_id": 0}
    hf |= {"rope_interleaved": False, "rope_scaling": None, "pretraining_tp": 1}  # as SmolLM2's says, too
    ours, theirs = config_from_llama(hf), transformers.LlamaConfig(**hf)
    assert (ours.n_kv_head, ours.block_size) == (theirs.num_key_value_heads, theirs.max_position_embeddings)
    assert (ours.norm_eps, ours.tied, ours.head_size) == (theirs.rms_norm_eps, False, 8)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


def read_with(folder, model: Llama, **tensors) -> Llama:
    """What is read of a published folder that has more tensors than llama_to_hf writes, or others."""
    llama_to_hf(model, folder)
    stored = load_file(folder / "model.safetensors")
    save_file(stored | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return llama_from_hf(folder)


def test_stored_buffers_are_left_out_and_a_tied_head_is_compared(tmp_path):
    speeds = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    read_with(tmp_path, new(), **speeds)
    tied = new(KINDS["tied"])
    wte = tied.lm_head.weight.detach()
    again = read_with(tmp_path, tied, **{"lm_head.weight": wte.clone()})
    assert torch.equal(again.lm_head.weight, wte) and again.lm_head.weight is again.transformer.wte.weight
    with pytest.raises(ValueError, match="but the file has two tables"):
        read_with(tmp_path, tied, **{"lm_head.weight": wte + 1})


def test_weights_that_are_no_numbers_or_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"model.norm.weight"):
        read_with(tmp_path, new(), **{"model.norm.weight": torch.full((TINY.n_embd,), torch.nan)})
    llama_to_hf(new(), tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(hf | {"intermediate_size": 64}))
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp"):
        llama_from_hf(tmp_path)
