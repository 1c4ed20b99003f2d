"""GPT-2 in PyTorch, as built by the course's notebooks: one module a chapter."""
