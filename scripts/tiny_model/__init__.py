"""The parts of scripts/make_tiny_model.py, by subject."""
