"""How good a model is: losses, excess over the floor, HellaSwag."""
