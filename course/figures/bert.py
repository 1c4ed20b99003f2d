"""Chapter 24d's comparison with `transformers`."""

import importlib.util
import tempfile


def compared_with_transformers(load) -> str:
    """How far the logits of transformers' BertForMaskedLM and of `load` are apart, on random weights, with padding."""
    if not importlib.util.find_spec("transformers"):
        return "transformers is not installed here: pip install transformers, then run this cell again"
    import torch
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3}
    torch.manual_seed(0)
    theirs = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)).eval()
    ids = torch.arange(80).view(2, 40)
    keep = torch.ones(2, 40, dtype=torch.bool)
    keep[1, 25:] = False
    second = (torch.arange(40) > 15).long().expand(2, 40)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs.save_pretrained(folder)
        ours = load(folder)(ids, keep=keep, sentence=second)[0]
        expected = theirs(ids, attention_mask=keep.long(), token_type_ids=second).logits
    apart = (ours - expected)[keep].abs().max().item()
    return f"BertForMaskedLM's logits: {'equal within 1e-5' if apart < 1e-5 else f'{apart:.0e} apart'}"
