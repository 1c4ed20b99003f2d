"""The stories' grammar and floor, real text, and the files that other programs read."""
