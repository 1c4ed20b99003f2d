"""Every speed-up, predicted and measured, one on the other."""
