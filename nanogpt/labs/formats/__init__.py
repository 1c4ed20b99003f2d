"""Files of others: llm.c, Megatron-LM, SentencePiece."""
