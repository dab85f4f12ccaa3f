"""Isolated execution of code that nobody has read."""
