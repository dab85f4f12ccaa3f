"""lecritique: reinforcement learning of language models in which the critic earns its place."""

__version__ = "0.1.0"
