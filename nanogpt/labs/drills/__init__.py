"""What the chapters let several processes do, to be measured."""
