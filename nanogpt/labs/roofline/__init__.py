"""What a training step must compute, move and keep: predicted, and measured."""
