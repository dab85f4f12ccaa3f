"""Reasoning Gym's data sets as an environment."""
