"""What a trained model knows: losses, stories' questions, HellaSwag."""
