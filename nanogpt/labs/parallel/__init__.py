"""One model on many devices, by hand: buckets, ZeRO, tensor, context and pipeline parallelism."""
