"""What writes shards: the stories and their floor, real text of any size, cleaning, mixtures."""
