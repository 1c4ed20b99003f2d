"""Llama and Qwen3: GPT-2 with six changes."""
