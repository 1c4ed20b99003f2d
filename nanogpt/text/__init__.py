"""Text into tokens, tokens into batches."""
