"""How long the rollouts of a plan are: the recipe's mean and spread cut at its limit, or those of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Part of the variance of log-lengths that all rollouts of a prompt share. Assumed.
_SHARED = 0.5


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Log-normal numbers of sampled tokens. `mean` and `spread` (deviation over mean) are those before the cut."""

    mean: float
    spread: float
    limit: int
    prompt: int

    def groups(self, count: int, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Sampled tokens of `count` groups of `size` rollouts, [count, size]; each at least 1 and at most the limit."""
        variance = math.log1p(self.spread**2)
        shared = rng.standard_normal((count, 1)) * math.sqrt(_SHARED * variance)
        own = rng.standard_normal((count, size)) * math.sqrt((1 - _SHARED) * variance)
        drawn = self.mean * np.exp(shared + own - variance / 2)
        found: NDArray[np.float64] = np.clip(np.rint(drawn), 1, self.limit)
        return found


@dataclass(frozen=True, kw_only=True)
class MeasuredLengths:
    """Groups that a run has sampled, [groups, size] tokens, drawn again; `prompt` is the mean."""

    sampled: NDArray[np.float64]
    prompt: float

    def groups(self, count: int, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Sampled tokens of `count` groups of `size` rollouts, [count, size].

        Raises:
            ValueError: the run's groups have another size.
        """
        if self.sampled.shape[1] != size:
            raise ValueError(f"the run sampled groups of {self.sampled.shape[1]}, got a size of {size}")
        return self.sampled[rng.integers(len(self.sampled), size=count)]
