"""What chapters build to study, to measure or to go further; a folder a topic. Nothing in nanogpt/*.py imports it."""
