"""Exercise sets: read, handed out, checked by students."""
