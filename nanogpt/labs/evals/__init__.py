"""What a trained model knows: the floor and the excess over it, stories' questions, HellaSwag."""
