"""Files of others: transformers, llm.c, Megatron-LM, SentencePiece."""
