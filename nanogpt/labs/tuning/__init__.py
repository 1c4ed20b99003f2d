"""Adapters (LoRA), and learning from answers and rewards."""
