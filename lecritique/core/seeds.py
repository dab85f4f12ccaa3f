"""Stateless seeds and uniforms: hashes of what they are for, so there is nothing to checkpoint."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray


def derive_seed(
    root: int,
    purpose: str,
    *,
    row: int = 0,
    attempt: int = 0,
    member: int = 0,
    turn: int = 0,
) -> int:
    """Seed in [0, 2^63) for one purpose, a hash of (root, purpose, row, attempt, member, turn)."""
    text = f"{root}|{purpose}|{row}|{attempt}|{member}|{turn}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def uniforms(seeds: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """Counter-based uniforms in [0, 1): one per (seed, position), the same on every machine and in every batch.

    The splitmix64 finaliser (Steele, Lea and Flood 2014) of the seed, then of that with the position put in,
    so that the two play different parts; 53 bits are kept.

    Args:
        seeds: integers, any shape.
        positions: integers, broadcast against `seeds`.
    """
    with np.errstate(over="ignore"):
        key = _splitmix64(np.asarray(seeds, dtype=np.uint64))
        counter = np.asarray(positions, dtype=np.uint64)
        mixed = _splitmix64(key ^ counter)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
