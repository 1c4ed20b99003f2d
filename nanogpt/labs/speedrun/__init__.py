"""The same loss in less time."""
