"""Attention and losses by hand, and as Triton kernels."""
