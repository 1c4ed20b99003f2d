"""Real text of any size: sources, parallel and resumable preparing, cleaning, mixtures."""
