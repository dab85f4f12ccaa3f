"""avg@K and pass@k over problems. P problems, K samples of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Mean score over all problems and samples, and how many of the samples failed and counted as wrong."""

    mean: float
    samples: int
    failed: int


def avg_at_k(scores_PK: ArrayLike) -> Accuracy:
    """Mean score over all problems and all samples; what failed stays in the denominator as wrong.

        avg@K = (1 / (P K)) sum_p sum_k s_pk,   s_pk = 0 for a failed sample

    A failed rollout, a truncated one without an answer and a crashed verifier are wrong here and are counted in
    `failed`: leaving them out would reward a model for crashing on what it cannot solve.

    Args:
        scores_PK: [P, K], reward units, NaN where the sample failed; for one sample a problem, [P, 1].

    Raises:
        ValueError: not two-dimensional, empty, or an infinite score.

    Source: VP eq. 16; method sheet section 8.
    """
    scores = np.asarray(scores_PK, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores must be [problems, samples] with at least one of each, got {scores.shape}")
    if np.isinf(scores).any():
        raise ValueError("a score is infinite, expected finite scores, or NaN for a failed sample")
    failed = np.isnan(scores)
    return Accuracy(
        mean=float(np.where(failed, 0.0, scores).mean()), samples=int(scores.size), failed=int(failed.sum())
    )


def pass_at_k(samples: int, correct: int, k: int) -> float | None:
    """Probability that at least one of k samples, drawn without replacement from those at hand, is correct.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Unbiased for 1 - (1 - q)^k with q the success rate. k = 1 is c / n; k = n is 1 as soon as c >= 1.

    Args:
        samples: n, of one problem, failed ones included.
        correct: c, in [0, n].
        k: at least 1.

    Returns:
        in [0, 1], or None for n < k: not reported, and not approximated.

    Raises:
        ValueError: k below 1, or c outside [0, n].

    Source: Chen et al. 2021 (2107.03374) eq. 1; method sheet section 8.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not 0 <= correct <= samples:
        raise ValueError(f"correct must be in [0, {samples}], got {correct}")
    if samples < k:
        return None
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def mean_pass_at_k(samples_P: Sequence[int], correct_P: Sequence[int], k: int) -> float | None:
    """`pass_at_k` averaged over problems, each counting the same.

        mean = (1 / P) sum_p pass@k(n_p, c_p)

    Args:
        samples_P: [P], samples of each problem, failed ones included.
        correct_P: [P].
        k: at least 1.

    Returns:
        in [0, 1], or None when any problem has fewer than k samples: a mean over the rest is over other problems.

    Raises:
        ValueError: no problems, lists of different length, or what `pass_at_k` refuses.

    Source: Chen et al. 2021 (2107.03374); method sheet section 8.
    """
    if not len(samples_P) or len(samples_P) != len(correct_P):
        raise ValueError(f"expected one count per problem, got {len(samples_P)} and {len(correct_P)}")
    found = [pass_at_k(int(n), int(c), k) for n, c in zip(samples_P, correct_P, strict=True)]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if len(known) == len(found) else None


def average_of_sets(scores: Sequence[float]) -> float:
    """Mean over evaluation sets, each counting the same whatever its size.

        average = (1 / S) sum_s avg@K_s

    Args:
        scores: avg@K of each set.

    Raises:
        ValueError: no sets, or a score that is not finite: an average over fewer sets is another quantity.

    Source: VP eq. 16; method sheet section 8.
    """
    if not len(scores) or not all(math.isfinite(score) for score in scores):
        raise ValueError(f"an average over sets needs a finite score of every set, got {list(scores)}")
    return sum(scores) / len(scores)
