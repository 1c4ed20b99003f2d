"""A small model for a reader who has not run chapter 07: trained for a few seconds, and it writes accordingly."""

from course.paths import BUILT


def stand_in(tokenizer, manifest: dict, device):
    """A GPT of two narrow layers after 200 steps on the stories; says that it is none of chapter 07's."""
    from nanogpt.device import seed_everything
    from nanogpt.gpt.model import GPT, GPTConfig
    from nanogpt.gpt.train import scale_init, train
    from nanogpt.text.data import DocumentStream

    print("data/built/model is missing, chapter 07 makes it; here is a small model, trained for 200 steps")
    shards = [BUILT / "stories" / shard["file"] for shard in manifest["splits"]["train"]["shards"]]
    config = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, n_embd=64)
    model = scale_init(GPT(config, generator=seed_everything(0))).to(device)
    train(model.train(), DocumentStream(shards, B=8, T=128, device=device), steps=200, lr=5e-3)
    return model.eval()
