"""One model on many devices: buckets, ZeRO, FSDP2, tensor, context and pipeline parallelism; ranks that differ or are lost."""
