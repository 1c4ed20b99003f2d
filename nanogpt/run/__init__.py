"""A training run from configuration to metrics: the trainer, its checkpoints, its log."""
