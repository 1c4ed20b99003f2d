"""Where a submission's code runs."""
