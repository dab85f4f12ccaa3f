"""Where in a response a token stands, profiles over the response, prefixes of it, and length tertiles.

Shapes: T action tokens of a response, N responses, P problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lecritique.numerics.statistics.bootstrap import finite_mean

Array = NDArray[np.float64]

POSITION_BINS = 10


def position_bins(actions: int, bins: int = POSITION_BINS) -> NDArray[np.int64]:
    """Bin of each action index of a response, by relative position.

        b_i = floor(bins (i + 1/2) / T),   i = 0, ..., T - 1

    In integers, so that no edge is rounded. A single action stands in the middle.

    Args:
        actions: T, action tokens of the whole response; 0 gives an empty array.
        bins: number of bins.

    Returns:
        [T] int in [0, bins).

    Raises:
        ValueError: a negative count or fewer than 1 bin.

    Source: VP G.1; method sheet section 8.
    """
    if actions < 0 or bins < 1:
        raise ValueError(f"expected at least 0 actions and 1 bin, got {actions} and {bins}")
    return np.asarray(bins * (2 * np.arange(actions) + 1) // (2 * max(actions, 1)))


def position_profile(signals: Sequence[ArrayLike], problem_of_N: ArrayLike, *, bins: int = POSITION_BINS) -> Array:
    """Mean of a per-token signal in each relative position, problems counting equally.

        profile_b = mean over problems of (mean over its responses of (mean over tokens i with b_i = b of u_i))

    Responses without a token in a bin drop out of that bin, then problems do. Excluded tokens are NaN: their places
    stay, so that T and the other tokens' bins are those of the whole response (no rescaling).

    Args:
        signals: one [T] per response, any unit, NaN where a token is excluded.
        problem_of_N: [N], the problem of each response, any values that can be compared.
        bins: number of bins.

    Returns:
        [bins], NaN where no response has a token.

    Raises:
        ValueError: what `problem_profiles` refuses.

    Source: VP G.1; method sheet section 8.
    """
    of_problem = problem_profiles(signals, problem_of_N, bins=bins)
    return finite_mean(of_problem, axis=0) if len(of_problem) else np.full(bins, np.nan)


def problem_profiles(signals: Sequence[ArrayLike], problem_of_N: ArrayLike, *, bins: int = POSITION_BINS) -> Array:
    """The profile of each problem; `position_profile` is their mean, and problems are what a bootstrap resamples.

        profile_pb = mean over responses of p of (mean over tokens i with b_i = b of u_i)

    Args:
        signals: one [T] per response, any unit, NaN where a token is excluded.
        problem_of_N: [N], the problem of each response, any values that can be compared.
        bins: number of bins.

    Returns:
        [P, bins] in ascending order of the problems, NaN where no response of the problem has a token.

    Raises:
        ValueError: different numbers of responses and problems, or what `position_bins` refuses.

    Source: VP G.1; method sheet section 8.
    """
    problems = np.asarray(problem_of_N)
    if len(signals) != len(problems):
        raise ValueError(f"expected one problem per response, got {len(problems)} for {len(signals)}")
    means_NB = np.full((len(signals), bins), np.nan)
    for row, signal in enumerate(signals):
        column = np.asarray(signal, dtype=np.float64)
        place = position_bins(len(column), bins)
        known = np.isfinite(column)
        count = np.bincount(place[known], minlength=bins)
        total = np.bincount(place[known], weights=column[known], minlength=bins)
        means_NB[row] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    if not len(signals):
        return np.zeros((0, bins))
    return np.stack([finite_mean(means_NB[problems == problem], axis=0) for problem in np.unique(problems)])


def squared_error_gain(clean_T: ArrayLike, privileged_T: ArrayLike, episode_return: float) -> Array:
    """How much nearer a privileged critic is to the return than a clean one, token by token: the critic signal.

        u_t = (v_clean,t - R)^2 - (v_priv,t - R)^2

    Above 0 where privileged information helps, 0 for equal critics.

    Args:
        clean_T: [T], reward units.
        privileged_T: [T] of the same tokens, or one number for a baseline that does not move.
        episode_return: R.

    Returns:
        [T], squared reward units.

    Raises:
        ValueError: values of different tokens, or a return that is not finite.

    Source: VP G.1; method sheet section 8.
    """
    clean, privileged = np.asarray(clean_T, dtype=np.float64), np.asarray(privileged_T, dtype=np.float64)
    if clean.ndim != 1 or privileged.shape not in ((), clean.shape) or not math.isfinite(episode_return):
        raise ValueError(
            f"expected values [T] of the same tokens and a finite return, got {clean.shape}, {privileged.shape} and "
            f"{episode_return}"
        )
    return np.asarray(np.square(clean - episode_return) - np.square(privileged - episode_return))


def prefix_actions(actions: int, fraction: float) -> int:
    """Action tokens of the prefix that is a fraction of a response.

        n = floor(f T)

    Always short of the whole response, so that something is left to continue. Rounded down (ours: the paper does not
    say); a product that is an integer but for rounding, such as 0.29 x 100, is that integer.

    Args:
        actions: T, at least 1.
        fraction: f, in [0, 1).

    Returns:
        in [0, T - 1].

    Raises:
        ValueError: no actions, or a fraction outside [0, 1).

    Source: VP G.2; method sheet section 8.
    """
    if actions < 1 or not 0.0 <= fraction < 1.0:
        raise ValueError(f"expected at least 1 action and a fraction in [0, 1), got {actions} and {fraction}")
    return min(math.floor(fraction * actions + 1e-9), actions - 1)


def length_tertile_bounds(lengths_N: ArrayLike) -> tuple[float, float]:
    """The two lengths that cut problems into short, middle and long.

        bounds = percentiles 100/3 and 200/3 of the lengths, linearly interpolated

    Args:
        lengths_N: [N], tokens, of the problems that the bounds are fitted on.

    Raises:
        ValueError: no lengths, or one that is not finite.

    Source: VP G.2; method sheet section 8.
    """
    lengths = np.asarray(lengths_N, dtype=np.float64)
    if not lengths.size or not np.isfinite(lengths).all():
        raise ValueError(f"tertiles need finite lengths, got {lengths.size} of them")
    low, high = np.percentile(lengths, [100 / 3, 200 / 3])
    return float(low), float(high)


def length_tertile(lengths_N: ArrayLike, bounds: tuple[float, float]) -> NDArray[np.int64]:
    """Which tertile each length is in; upper bounds are inclusive.

        tertile = 0 if length <= low,   1 if low < length <= high,   2 otherwise

    Args:
        lengths_N: [N], tokens.
        bounds: low and high, from `length_tertile_bounds`.

    Returns:
        [N] int, 0, 1 or 2.

    Raises:
        ValueError: bounds in the wrong order.

    Source: VP G.2; method sheet section 8.
    """
    if not bounds[0] <= bounds[1]:
        raise ValueError(f"tertile bounds must be in order, got {bounds}")
    return np.asarray(np.searchsorted(np.asarray(bounds), np.asarray(lengths_N, dtype=np.float64), side="left"))


def late_gain_contrast(clean_P3: ArrayLike, privileged_P3: ArrayLike) -> Array:
    """How much more a privileged critic gains late in a response than early, for each problem.

        C = (D(.5) + D(.8)) / 2 - D(.2),   D(f) = Brier_clean(f) - Brier_privileged(f)

    Positive where privileged information helps more on long prefixes. The paper's C is the mean over problems;
    resample problems for its interval. Equal critics, or a gain that is the same everywhere, give 0.

    Args:
        clean_P3: [P, 3], Brier scores of the clean critic at prefixes of 0.2, 0.5 and 0.8 of the response.
        privileged_P3: [P, 3], the same of the privileged critic, problem by problem.

    Returns:
        [P], squared reward units.

    Raises:
        ValueError: shapes that differ or are not [P, 3].

    Source: VP eq. 22; method sheet section 8.
    """
    clean, privileged = np.asarray(clean_P3, dtype=np.float64), np.asarray(privileged_P3, dtype=np.float64)
    if clean.ndim != 2 or clean.shape[1] != 3 or clean.shape != privileged.shape:
        raise ValueError(f"expected two arrays [problems, 3], got {clean.shape} and {privileged.shape}")
    gain = clean - privileged
    return np.asarray((gain[:, 1] + gain[:, 2]) / 2.0 - gain[:, 0])
