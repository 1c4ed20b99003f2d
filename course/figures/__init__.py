"""What a chapter uses beside its text: its figures, a file a chapter and a function a figure; and its instruments."""
