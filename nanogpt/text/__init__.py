"""From text to batches of token ids: the tokenizer, shards on disk, the stream of batches."""
