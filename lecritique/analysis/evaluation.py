"""The summary of an evaluation: avg@K, pass@k, intervals over problems, splits, and the papers' averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lecritique.numerics.statistics.accuracy import average_of_sets, mean_pass_at_k
from lecritique.numerics.statistics.bootstrap import cluster_draws, percentile_bounds
from lecritique.runs.evaluations import ProblemResult
from lecritique.runtime.evaluation import correct_samples, scored

_MATH = {"aime24", "aime25", "aime26", "hmmt25", "minerva", "olympiadbench"}
_KNIGHTS = {"held_out", "roles_9", "roles_10", "roles_11"}
_RNG_SEED = 2016
_DRAWS_AT_ONCE = 4_000_000
_REPLICATES = 2000


def default_pass_ks(k: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to K, and K."""
    powers = [1 << i for i in range(k.bit_length()) if 1 << i <= k]
    return tuple(dict.fromkeys([*powers, k]))


def evaluation_summary(
    results: Sequence[ProblemResult], settings: Mapping[str, Any], *, pass_ks: Sequence[int] = ()
) -> dict[str, Any]:
    """All figures as JSON values.

    Args:
        results: of all problems of all sets.
        settings: as in the evaluation's eval.json.
        pass_ks: of pass@k; by default powers of two up to each set's K. One above K is reported as null.
    """
    sets, replicates = {}, []
    for index, (name, described) in enumerate(settings["sets"].items()):
        own = [result for result in results if result.set == name]
        figures, replicate_R = _figures(own, described, pass_ks, seed=_RNG_SEED + index)
        if any(result.split is not None for result in own):
            splits = sorted({str(result.split) for result in own})
            figures["splits"] = {
                split: _figures([r for r in own if str(r.split) == split], described, pass_ks, seed=_RNG_SEED)[0]
                for split in splits
            }
        sets[name] = figures
        replicates.append(replicate_R)
    summary = {**settings, "sets": {name: {**settings["sets"][name], **sets[name]} for name in sets}}
    if len(sets) > 1:
        low, high = percentile_bounds(np.mean(replicates, axis=0))
        summary["average"] = {
            "of": average_name(settings),
            "score": average_of_sets([figures["score"] for figures in sets.values()]),
            "interval": [low, high],
        }
    return summary


def average_name(settings: Mapping[str, Any]) -> str:
    """What an average over these sets, each counting the same, is called."""
    names = {name.split()[0] for name in settings["sets"]}
    tasks = [described["task"] for described in settings["sets"].values()]
    if names == _MATH and len(settings["sets"]) == len(_MATH):
        return "the six math sets of VP, equally"
    splits = [task.get("split") for task in tasks]
    if len(splits) == len(_KNIGHTS) and set(splits) == _KNIGHTS and {t["type"] for t in tasks} == {"knights_knaves"}:
        return "the four Knights and Knaves splits of VP, equally"
    return f"{len(settings['sets'])} sets, equally"


def _figures(
    results: Sequence[ProblemResult], described: Mapping[str, Any], pass_ks: Sequence[int], *, seed: int
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """The figures of one set, and bootstrap replicates of its score."""
    low, high = described["reward_range"]
    k = int(described["k"])
    figures: dict[str, Any] = asdict(scored(results, k=k, reward_range=(low, high)))
    del figures["pass_at_k"]
    counts = [len(result.scores) for result in results]
    correct = [correct_samples(result, high) for result in results]
    figures["pass_at_k"] = {str(n): mean_pass_at_k(counts, correct, n) for n in pass_ks or default_pass_ks(k)}
    means_P = np.array([np.mean([low if s is None else s for s in result.scores]) for result in results])
    replicate_R = _replicates(means_P, seed=seed)
    figures["interval"] = list(percentile_bounds(replicate_R))
    failures = [s for result in results for s in result.statuses if s not in ("ok", "truncated")]
    figures["failures"] = {kind: failures.count(kind) for kind in sorted(set(failures))}
    figures["mean_tokens"] = float(np.mean([count for result in results for count in result.tokens]))
    return figures, replicate_R


def _replicates(means_P: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """Means over problems that were drawn with replacement, [R], a bounded number of draws at a time."""
    at_once = max(1, _DRAWS_AT_ONCE // len(means_P))
    found = []
    for start in range(0, _REPLICATES, at_once):
        count = min(at_once, _REPLICATES - start)
        draws = cluster_draws(len(means_P), replicates=count, seed=seed + 1000 * start)
        found.append(means_P[draws].mean(axis=1))
    return np.concatenate(found)
