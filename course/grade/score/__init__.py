"""What a submission is worth."""
