"""What a trained model knows: excess over the floor, stories' questions, HellaSwag."""
