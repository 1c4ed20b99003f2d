"""Other systems' files: Canvas, Moodle, Gradescope, PrairieLearn."""
