"""Grading: submissions are data, their code runs in a sandbox, and what decides a score never leaves this side."""
