"""What chapters make several processes do, to be measured."""
