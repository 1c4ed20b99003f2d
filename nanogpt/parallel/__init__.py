"""One step on many processes: data, tensor, context and pipeline parallelism."""
