"""Predicting what a program returns, or an input for which it returns a given value."""
