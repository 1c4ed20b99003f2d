"""What a run will need and reach before it is started: memory, time, money, loss."""
