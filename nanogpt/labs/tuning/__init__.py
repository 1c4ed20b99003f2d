"""Learning from answers and rewards."""
