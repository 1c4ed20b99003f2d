"""A clock, what a device can do at most, and what a training step must compute, move and keep."""
