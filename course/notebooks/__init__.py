"""Notebooks: built from their sources, executed, brought back."""
