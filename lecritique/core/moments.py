"""Count, mean and sum of squared deviations, mergeable in any order (Chan, Golub and LeVeque 1979)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Moments:
    """Moments of a set of numbers, in float64."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of `values`, any shape."""
        array = np.asarray(values, dtype=np.float64).ravel()
        if array.size == 0:
            return cls()
        mean = float(array.mean())
        return cls(array.size, mean, float(np.square(array - mean).sum()))

    def merge(self, other: Moments) -> Moments:
        """Moments of the union."""
        count = self.count + other.count
        if count == 0:
            return Moments()
        gap = other.mean - self.mean
        mean = self.mean + gap * other.count / count
        m2 = self.m2 + other.m2 + gap * gap * self.count * other.count / count
        return Moments(count, mean, m2)

    @property
    def variance(self) -> float:
        """Population variance; NaN of nothing."""
        return self.m2 / self.count if self.count else float("nan")
