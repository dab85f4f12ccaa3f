"""Seconds of each piece of work on given GPUs: the larger of arithmetic and memory traffic, each at a stated share.

The roofline. A pass over tokens costs 2 FLOPs a parameter and token, and 4 a layer, head width, and token attended to.
A backward pass costs that for what goes in and again for the weights, of which frozen ones take none; where activations
are computed again, the layers are read once more. A decode step reads all weights and the keys and values of its rows
once. The shares of a GPU's peak that are reached are `Efficiency`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lecritique.planning.placement import Gpu
from lecritique.planning.shapes import ModelShape
from lecritique.planning.weights import WIDTH, ModelWeights


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Shares of the peak that are reached, and fixed costs. Assumed, not measured: no GPU has been timed for them."""

    train: float = 0.35
    """Of dense bfloat16 FLOP/s, forward and backward."""
    score: float = 0.45
    """Of the same, forward alone; prompts too."""
    decode: float = 0.60
    """Of the memory's bandwidth, in a decode step."""
    step_seconds: float = 0.003
    """Added to each decode step: launches, sampling, log-probs."""
    publish_bandwidth: float = 20e9
    """Bytes/s at which new weights reach the GPUs that generate or score."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The model on one kind of GPU, in the precision of the run."""

    shape: ModelShape
    gpu: Gpu
    dtype: str
    efficiency: Efficiency

    def forward_flops(self, length: float, *, output: bool, cached: float = 0.0) -> float:
        """FLOPs of a forward pass over `length` tokens of one row that follow `cached` others.

        Args:
            length: new tokens.
            output: with logits, or (a critic) without.
            cached: tokens whose keys and values are there.
        """
        shape = self.shape
        parameters = shape.trunk_parameters + (shape.embedding_parameters if output else 0)
        attended = cached + length / 2  # by the average new token, causally
        attention = 4 * shape.heads * shape.head_width * shape.attended_in_all_layers(attended)
        return length * (2 * parameters + attention)

    def training_flops(self, length: float, *, output: bool, model: ModelWeights, recompute: bool) -> float:
        """FLOPs of a forward and a backward pass over one row of `length` tokens.

        Args:
            length: all of it new.
            output: with logits.
            model: what of it trains; an adapter's own products are in.
            recompute: each layer is read once more for its gradient.
        """
        forward = self.forward_flops(length, output=output)
        again = self.forward_flops(length, output=False) if recompute else 0.0
        if not model.adapter:
            return 3 * forward + again
        shape = self.shape
        frozen = shape.trunk_parameters + (shape.embedding_parameters if output else 0)
        passes = 4 if recompute else 3
        return 3 * forward + again - 2 * length * frozen + passes * 2 * length * model.trained

    def score_seconds(self, flops: float, gpus: int) -> float:
        """A forward pass of so many FLOPs."""
        return flops / (gpus * self.gpu.flops * self._peak * self.efficiency.score)

    def train_seconds(self, flops: float, gpus: int) -> float:
        """Forward and backward passes of so many FLOPs together."""
        return flops / (gpus * self.gpu.flops * self._peak * self.efficiency.train)

    def prefill_seconds(self, length: float) -> float:
        """One engine reads so many tokens of one row that it has no keys of."""
        return self.score_seconds(self.forward_flops(length, output=False), 1)

    def decode_seconds(self, rows: int, context: float) -> float:
        """One token for each of `rows` rows with `context` tokens on average, on one GPU."""
        width = WIDTH[self.dtype]
        traffic = self.shape.parameters * width + rows * self.shape.cache_numbers(int(context)) * width
        arithmetic = rows * self.forward_flops(1, output=True, cached=context)
        return self.efficiency.step_seconds + max(
            traffic / (self.gpu.bandwidth * self.efficiency.decode),
            arithmetic / (self.gpu.flops * self._peak * self.efficiency.score),
        )

    def publish_seconds(self, size: int) -> float:
        """So many bytes of new weights on their way to where they are used."""
        return size / self.efficiency.publish_bandwidth

    @property
    def _peak(self) -> float:
        """Share of the bfloat16 peak that the precision has."""
        return {2: 1.0, 4: 0.5, 8: 1 / 16}[WIDTH[self.dtype]]
