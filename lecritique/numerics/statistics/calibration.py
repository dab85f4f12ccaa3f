"""How well predicted success probabilities fit outcomes: Brier score and its parts, calibration error, ranking.

Shapes: N items (a prefix, a token), K outcomes of each. Predictions are critic values in reward units; outcomes lie in
[0, 1] (a verifier's label) unless said. All is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CALIBRATION_BINS = 10


@dataclass(frozen=True, kw_only=True)
class BrierParts:
    """Brier score = reliability - resolution + uncertainty + within_bins; all in squared reward units, none negative
    but `within_bins`.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float

    @property
    def score(self) -> float:
        """The Brier score that the parts add up to."""
        return self.reliability - self.resolution + self.uncertainty + self.within_bins


def brier_score(predictions_N: ArrayLike, outcomes_N: ArrayLike) -> float:
    """Mean squared distance of predictions from outcomes.

        Brier = mean_i (p_i - y_i)^2

    0 for perfect predictions, Var(y) for the constant prediction mean(y).

    Args:
        predictions_N: [N], reward units.
        outcomes_N: [N], reward units.

    Raises:
        ValueError: no items, shapes that differ, or a number that is not finite.

    Source: method sheet section 8.
    """
    p, y = _pair(predictions_N, outcomes_N)
    return float(np.square(p - y).mean())


def continuation_brier(predictions_N: ArrayLike, outcomes_NK: ArrayLike) -> Array:
    """Brier score of each prefix against the outcomes of its K continuations.

        Brier_i = (p_i - ybar_i)^2 + mean_k (y_ik - ybar_i)^2,   ybar_i = mean_k y_ik

    It equals mean_k (p_i - y_ik)^2. The second term is the noise of the outcomes and the same for every critic, so
    a difference of two critics' scores is a difference of first terms.

    Args:
        predictions_N: [N], reward units.
        outcomes_NK: [N, K], reward units.

    Returns:
        [N], squared reward units.

    Raises:
        ValueError: no items or continuations, shapes that do not go together, or a number that is not finite.

    Source: VP eq. 23; method sheet section 8.
    """
    p, y = _floats("predictions", predictions_N), _floats("outcomes", outcomes_NK)
    if y.ndim != 2 or p.shape != y.shape[:1] or y.size == 0:
        raise ValueError(f"expected predictions [N] and outcomes [N, K] with N, K >= 1, got {p.shape} and {y.shape}")
    mean = y.mean(axis=1)
    return np.asarray(np.square(p - mean) + np.square(y - mean[:, None]).mean(axis=1))


def brier_parts(predictions_N: ArrayLike, outcomes_N: ArrayLike, *, bins: int | None = None) -> BrierParts:
    """The Brier score split by bins of the prediction.

        reliability = sum_b (n_b / n) (pbar_b - ybar_b)^2
        resolution  = sum_b (n_b / n) (ybar_b - ybar)^2
        uncertainty = mean_i (y_i - ybar)^2
        within_bins = mean_i (p_i - pbar_b)^2 - 2 mean_i (p_i - pbar_b) (y_i - ybar_b)

    b is the bin of item i. Without `bins` each distinct prediction is a bin of its own: within_bins is 0 and the
    split is Murphy's. A constant prediction has resolution 0; with binary outcomes uncertainty is ybar (1 - ybar).

    Args:
        predictions_N: [N], reward units; in [0, 1] when `bins` is given.
        outcomes_N: [N], reward units.
        bins: number of equal-width bins of [0, 1], or None.

    Raises:
        ValueError: no items, shapes that differ, a number that is not finite, or predictions outside [0, 1] in bins.

    Source: Murphy 1973, with the within-bin term of Stephenson et al. 2008; method sheet section 8.
    """
    p, y = _pair(predictions_N, outcomes_N)
    place = np.unique(p, return_inverse=True)[1] if bins is None else _bin_of(p, bins)
    count, p_bar, y_bar = _bin_means(place, p, y)
    share = count / len(p)
    p_off, y_off = p - p_bar[place], y - y_bar[place]
    return BrierParts(
        reliability=float((share * np.square(p_bar - y_bar)).sum()),
        resolution=float((share * np.square(y_bar - y.mean())).sum()),
        uncertainty=float(np.square(y - y.mean()).mean()),
        within_bins=float((np.square(p_off) - 2.0 * p_off * y_off).mean()),
    )


def expected_calibration_error(
    predictions_N: ArrayLike, outcomes_N: ArrayLike, *, bins: int = CALIBRATION_BINS
) -> float:
    """Mean distance between predicted and observed frequency over equal-width bins of the prediction.

        ECE = sum_b (n_b / n) |ybar_b - pbar_b|,   b = min(floor(bins p), bins - 1)

    Bins are closed on the left; the last one holds p = 1 as well (ours: the paper does not say). Empty bins count
    nothing. 0 for a constant prediction mean(y), however useless it is.

    Args:
        predictions_N: [N], in [0, 1].
        outcomes_N: [N], reward units.
        bins: at least 1.

    Raises:
        ValueError: no items, shapes that differ, a number that is not finite, or predictions outside [0, 1].

    Source: Naeini et al. 2015; VP G.2-G.4; method sheet section 8.
    """
    p, y = _pair(predictions_N, outcomes_N)
    count, p_bar, y_bar = _bin_means(_bin_of(p, bins), p, y)
    return float((count / len(p) * np.abs(y_bar - p_bar)).sum())


def area_under_curve(predictions_N: ArrayLike, successes_N: ArrayLike) -> float:
    """Probability that a success is predicted higher than a failure, ties counting half.

        AUC = P(p_i > p_j) + P(p_i = p_j) / 2,   i a random success, j a random failure

    1/2 for a constant prediction; unchanged by any increasing map of the predictions; 1 - AUC for -p.

    Args:
        predictions_N: [N], reward units.
        successes_N: [N] bool, or 0 and 1.

    Returns:
        in [0, 1]; NaN without a success or without a failure.

    Raises:
        ValueError: no items, shapes that differ, a number that is not finite, or an outcome other than 0 and 1.

    Source: Mann and Whitney 1947; method sheet section 8.
    """
    p, y = _pair(predictions_N, successes_N)
    if not np.isin(y, (0.0, 1.0)).all():
        raise ValueError(f"outcomes must be 0 or 1, got {y[~np.isin(y, (0.0, 1.0))][0]:g}")
    success = y == 1.0
    wins, losses = int(success.sum()), int((~success).sum())
    if not wins or not losses:
        return math.nan
    _, place, count = np.unique(p, return_inverse=True, return_counts=True)
    mid_rank = np.cumsum(count) - (count - 1) / 2.0  # the mean rank of tied predictions, from 1
    return float((mid_rank[place][success].sum() - wins * (wins + 1) / 2.0) / (wins * losses))


def weighted_explained_variance(
    predictions_N: ArrayLike, outcomes_N: ArrayLike, weights_N: ArrayLike | None = None
) -> float:
    """The share of the outcomes' variance that the predictions explain, items weighted.

        EV = 1 - Var_w(y - p) / Var_w(y),   Var_w(u) = sum_i w_i (u_i - sum_j w_j u_j)^2,   w_i >= 0 summing to 1

    Weights of 1 / (items of the problem) let problems count equally (ours: the paper's weights are not in our copy);
    equal weights are `explained_variance`. An item of weight 2 is that item twice. 1 for p = y + constant.

    Args:
        predictions_N: [N], reward units.
        outcomes_N: [N], reward units: a single outcome, or the mean of a prefix's continuations.
        weights_N: [N], at least 0, scaled to sum to 1; None weighs all the same.

    Returns:
        at most 1; NaN where Var_w(y) < 1e-12.

    Raises:
        ValueError: no items, shapes that differ, a number that is not finite, or weights negative or all 0.

    Source: VP eq. 24; LC section 4.3; method sheet section 8.
    """
    p, y = _pair(predictions_N, outcomes_N)
    w = np.ones_like(p) if weights_N is None else _floats("weights", weights_N)
    if w.shape != p.shape or (w < 0).any() or not w.sum() > 0:
        raise ValueError(f"weights must be {p.shape}, at least 0 and not all 0")
    w = w / w.sum()
    variance = _weighted_variance(y, w)
    return math.nan if variance < 1e-12 else 1.0 - _weighted_variance(y - p, w) / variance


def _weighted_variance(u: Array, w: Array) -> float:
    return float((w * np.square(u - (w * u).sum())).sum())


def _bin_of(p: Array, bins: int) -> NDArray[np.int64]:
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    if p.min() < 0.0 or p.max() > 1.0:
        raise ValueError(f"predictions must be in [0, 1] to be binned, got {p.min():g} to {p.max():g}")
    return np.minimum((p * bins).astype(np.int64), bins - 1)


def _bin_means(place: NDArray[np.int64], p: Array, y: Array) -> tuple[Array, Array, Array]:
    """Count, mean prediction and mean outcome of each bin; means of empty bins are 0."""
    count = np.bincount(place).astype(np.float64)
    divisor = np.maximum(count, 1.0)
    return count, np.bincount(place, weights=p) / divisor, np.bincount(place, weights=y) / divisor


def _pair(predictions: ArrayLike, outcomes: ArrayLike) -> tuple[Array, Array]:
    p, y = _floats("predictions", predictions), _floats("outcomes", outcomes)
    if p.ndim != 1 or p.shape != y.shape or not p.size:
        raise ValueError(f"predictions and outcomes must be [N] with N >= 1, got {p.shape} and {y.shape}")
    return p, y


def _floats(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}")
    return array
