"""Where text comes from: the generated stories and their floor, real text, Megatron's files."""
