"""What looks after a run at night."""
