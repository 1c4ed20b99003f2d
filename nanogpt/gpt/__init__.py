"""GPT-2: the model, its training loop and its sampling."""
