"""What was graded, shown and summed up."""
