"""Which kernel PyTorch's attention runs is read off the graph, also behind a cut of a padded head."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanogpt.labs.kernels.flash import sdpa_backend


def qkv(*shape, dtype=torch.float32, device="cpu"):
    g = torch.Generator().manual_seed(0)
    return [z.to(device, dtype) for z in torch.randn(3, *shape, generator=g)]


@pytest.mark.parametrize("backend, name", [(SDPBackend.MATH, "math"), (SDPBackend.FLASH_ATTENTION, "Flash")])
def test_the_backend_is_read_off_the_graph_also_behind_a_padded_head_that_is_cut_back(
    backend, name, monkeypatch
):
    """As PyTorch does on CUDA with heads that are no multiple of 8 (sdp_utils, post_process_flash_output)."""
    attention = F.scaled_dot_product_attention

    def padded(q, k, v, **options):
        return attention(*(F.pad(z, (0, 4)) for z in (q, k, v)), **options)[..., :20]

    with sdpa_kernel(backend):
        assert sdpa_backend(*qkv(1, 2, 16, 8), is_causal=True) == name
        monkeypatch.setattr(F, "scaled_dot_product_attention", padded)
        assert sdpa_backend(*qkv(1, 2, 16, 20), is_causal=True) == name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_backend_on_a_gpu():
    half = qkv(2, 4, 256, 64, device="cuda", dtype=torch.float16)
    names = {"math": SDPBackend.MATH, "Efficient": SDPBackend.EFFICIENT_ATTENTION}
    for name, backend in names.items():
        with sdpa_kernel(backend):
            assert sdpa_backend(*half, is_causal=True) == name
    assert sdpa_backend(*half, is_causal=True) != "math"
    odd = qkv(2, 4, 256, 20, device="cuda", dtype=torch.float16)
    assert sdpa_backend(*odd, is_causal=True) != "math"
