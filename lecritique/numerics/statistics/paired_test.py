"""Is the mean of paired differences zero? The sign-flip permutation test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

FLIPS = 20_000
FEWEST_PAIRS = 3
# Up to 2^16 sign patterns are enumerated: half a second of work and no Monte Carlo error.
_ENUMERATED_PAIRS = 16
_CHUNK = 1024
_RNG_SEED = 2016


@dataclass(frozen=True, kw_only=True)
class SignFlips:
    """A p-value, whether every sign pattern was looked at, and the Monte Carlo standard error where not (else 0)."""

    p: float
    exact: bool
    standard_error: float


def sign_flip_test(differences_N: ArrayLike, *, flips: int = FLIPS, seed: int = _RNG_SEED) -> float:
    """The p-value of `sign_flips` alone.

        p = P(|mean(s d)| >= |mean(d)|)

    Args:
        differences_N: [N], one arm minus the other, any unit.
        flips: sign patterns that are drawn when they are not enumerated.
        seed: of the draws.

    Returns:
        in (0, 1]; NaN of fewer than 3 pairs, from which nothing is concluded.

    Raises:
        ValueError: not one-dimensional, a difference that is not finite, or fewer than 1 flip.

    Source: Fisher 1935; method sheet section 8.
    """
    return sign_flips(differences_N, flips=flips, seed=seed).p


def sign_flips(differences_N: ArrayLike, *, flips: int = FLIPS, seed: int = _RNG_SEED) -> SignFlips:
    """Two-sided p-value of the hypothesis that the differences are symmetric around zero.

        p = P(|mean(s d)| >= |mean(d)|),   s_i = +1 or -1 with probability 1/2 each

    Pairs are problems or seeds; swapping the two arms within a pair flips the sign of its difference. Enumerated in
    full up to 16 differences other than 0, drawn beyond that with p = (1 + hits) / (1 + flips), which keeps the test
    valid. Scaling or negating all differences changes nothing; all zero gives 1. The smallest p of n pairs is 2^(1-n).

    Args:
        differences_N: [N], one arm minus the other, any unit.
        flips: sign patterns that are drawn when they are not enumerated.
        seed: of the draws.

    Returns:
        p in (0, 1], NaN of fewer than 3 pairs, from which nothing is concluded; drawn, with the standard error
        sqrt(p (1 - p) / flips).

    Raises:
        ValueError: not one-dimensional, a difference that is not finite, or fewer than 1 flip.

    Source: Fisher 1935; method sheet section 8.
    """
    differences = np.asarray(differences_N, dtype=np.float64)
    if differences.ndim != 1 or not np.isfinite(differences).all():
        raise ValueError(f"differences must be [N] and finite, got shape {differences.shape}")
    if flips < 1:
        raise ValueError(f"flips must be at least 1, got {flips}")
    if len(differences) < FEWEST_PAIRS:
        return SignFlips(p=math.nan, exact=True, standard_error=0.0)
    moved = differences[differences != 0.0]  # a difference of 0 is the same under either sign
    # Rounding of the sums must not turn an equal pattern into a smaller one.
    bar = abs(float(moved.sum())) - 1e-12 * float(np.abs(moved).sum())
    if len(moved) <= _ENUMERATED_PAIRS:
        patterns = 1 << len(moved)
        hits = 0
        for start in range(0, patterns, _CHUNK):
            codes = np.arange(start, min(start + _CHUNK, patterns))
            signs = 1.0 - 2.0 * (codes[:, None] >> np.arange(len(moved)) & 1)
            hits += int((np.abs(signs @ moved) >= bar).sum())
        return SignFlips(p=hits / patterns, exact=True, standard_error=0.0)
    rng = np.random.default_rng(seed)
    hits = 0
    for start in range(0, flips, _CHUNK):
        signs = 1.0 - 2.0 * rng.integers(2, size=(min(_CHUNK, flips - start), len(moved)))
        hits += int((np.abs(signs @ moved) >= bar).sum())
    p = (1 + hits) / (1 + flips)
    return SignFlips(p=p, exact=False, standard_error=math.sqrt(p * (1 - p) / flips))
