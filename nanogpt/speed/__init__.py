"""How fast the model runs, how fast it could, and what makes it faster."""
