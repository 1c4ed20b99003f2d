"""One model on many devices: data, sharded, tensor, context and pipeline parallelism."""
