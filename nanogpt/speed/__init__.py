"""How fast a step could be, how fast it is, and what makes it faster."""
