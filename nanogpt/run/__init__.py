"""A run from a configuration: trainer, checkpoints, metrics, adapters."""
