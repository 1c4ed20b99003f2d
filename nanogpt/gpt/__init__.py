"""GPT-2: attention, model, weights, training, sampling."""
