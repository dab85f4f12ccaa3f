"""Continuation statistics on the tree equal their closed forms: all continuations of every prefix, enumerated.

With a uniform policy and observation probabilities in twentieths, K = 240 equally frequent continuations of each prefix
are its whole distribution. An item is a prefix before one of the three actions of an episode; a problem is an episode.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tree_mdp import ACTIONS, Tree

from lecritique.analysis.continuation_statistics import Items, continuation_statistics, contrast_by_problem
from lecritique.analysis.value_statistics import Resampling

K, SCALE = 240, 0.5
FRACTIONS = (0.0, 0.4, 0.7)


@pytest.fixture(scope="module")
def tree() -> Tree:
    found = Tree(seed=3)
    found.parameters_P = torch.zeros_like(found.parameters_P)
    return found


def continuations(tree: Tree, variant: int, history: tuple[int, ...]) -> list[float]:
    """The rewards of K equally likely continuations of a history."""
    found = []
    for e, p in zip(tree.episodes, tree.given_variant.tolist(), strict=True):
        if e.variant == variant and e.tokens[: len(history)] == history:
            found.append((e.reward, p))
    mass = sum(p for _, p in found)
    copies = [p / mass * K for _, p in found]
    assert np.allclose(copies, np.round(copies), atol=1e-9), "the probabilities are no multiples of 1 / K"
    return list(itertools.chain.from_iterable([r] * round(c) for (r, _), c in zip(found, copies, strict=True)))


def items_of(tree: Tree, **critics: torch.Tensor) -> Items:
    episodes = range(len(tree.episodes))
    outcomes = [
        continuations(tree, tree.episodes[e].variant, tree.episodes[e].history(t)) for e in episodes for t in ACTIONS
    ]
    return Items(
        problem_N=np.repeat(np.arange(len(episodes)), 3),
        fraction_N=np.tile(np.arange(3), len(episodes)),
        stratum_N=np.repeat(np.arange(len(episodes)) % 3, 3),
        outcomes_NK=SCALE * np.array(outcomes),
        predictions={name: SCALE * values[:, list(ACTIONS)].reshape(-1).numpy() for name, values in critics.items()},
    )


def test_every_statistic_equals_its_closed_form(tree: Tree) -> None:
    clean, exact = (tree.exact_values(sees_variant=sees) for sees in (False, True))
    wrong = tree.arbitrary_values(5, sees_variant=True)
    items = items_of(tree, clean=clean, answer=exact, wrong=wrong)
    found = continuation_statistics(items, FRACTIONS, Resampling(len(tree.episodes), replicates=5))
    # E[R | h, z] and Var(R | h, z) by the tree's own sums, independent of the continuations.
    V, second = exact[:, list(ACTIONS)], _second_moment(tree)[:, list(ACTIONS)]
    noise = SCALE**2 * float((second - V.square()).mean())
    total = SCALE**2 * float(V.var(correction=0))
    for name, values in (("clean", clean), ("answer", exact), ("wrong", wrong)):
        off = values[:, list(ACTIONS)] - V
        of = {
            key: entry["estimate"]
            for key, entry in found["critics"][name]["all"]["all"].items()
            if isinstance(entry, dict)
        }
        assert of["noise"] == pytest.approx(noise, abs=1e-12)
        assert of["squared_error"] == pytest.approx(SCALE**2 * float(off.square().mean()), abs=1e-12)
        assert of["brier"] == pytest.approx(of["squared_error"] + noise, abs=1e-12)
        assert of["bias"] == pytest.approx(SCALE * float(off.mean()), abs=1e-12)
        unexplained = SCALE**2 * float(off.var(correction=0))
        assert of["explained_variance"] == pytest.approx(1 - unexplained / total, abs=1e-10)
    exact_fit = found["critics"]["answer"]["all"]["all"]
    assert exact_fit["explained_variance"]["estimate"] == pytest.approx(1.0)
    assert exact_fit["calibration_error"]["estimate"] == pytest.approx(0.0, abs=1e-12)
    assert found["critics"]["clean"]["all"]["all"]["calibration_error"]["estimate"] == pytest.approx(
        _calibration_error(SCALE * clean[:, list(ACTIONS)].reshape(-1), SCALE * V.reshape(-1)), abs=1e-12
    )


def test_gain_at_each_prefix_and_the_contrast_equal_their_closed_forms(tree: Tree) -> None:
    """D(f) of the exact critic is what not knowing the variant costs there: the mean of (E[R | h] - E[R | h, z])^2."""
    clean, exact = (tree.exact_values(sees_variant=sees) for sees in (False, True))
    items = items_of(tree, clean=clean, answer=exact)
    found = continuation_statistics(items, FRACTIONS, Resampling(len(tree.episodes), replicates=5))
    D = SCALE**2 * (clean - exact)[:, list(ACTIONS)].square().mean(dim=0)
    for f, fraction in enumerate(FRACTIONS):
        gain = found["gains"]["answer"]["fractions"][f"{fraction:g}"]["brier"]["estimate"]
        assert gain == pytest.approx(float(D[f]), abs=1e-12)
    expected = float((D[1] + D[2]) / 2 - D[0])
    assert found["contrasts"]["answer"]["all"]["estimate"] == pytest.approx(expected, abs=1e-12)
    assert abs(expected) > 1e-4
    own = SCALE**2 * (clean - exact)[:, list(ACTIONS)].square()
    _, C_P = contrast_by_problem(items, "answer")
    np.testing.assert_allclose(C_P, ((own[:, 1] + own[:, 2]) / 2 - own[:, 0]).numpy(), atol=1e-12)


def test_a_variant_that_does_not_matter_leaves_nothing_to_gain() -> None:
    tree = Tree(seed=1, variant_matters=False)
    tree.parameters_P = torch.zeros_like(tree.parameters_P)
    items = items_of(tree, **{name: tree.exact_values(sees_variant=name != "clean") for name in ("clean", "answer")})
    found = continuation_statistics(items, FRACTIONS, Resampling(len(tree.episodes), replicates=20))
    for gain in found["gains"]["answer"]["fractions"].values():
        assert gain["brier"]["estimate"] == pytest.approx(0.0, abs=1e-12)
    assert found["contrasts"]["answer"]["all"]["estimate"] == pytest.approx(0.0, abs=1e-12)


def _second_moment(tree: Tree) -> torch.Tensor:
    """E[R^2 | h, z] before each action."""
    squared = Tree(seed=3)
    squared.parameters_P = torch.zeros_like(squared.parameters_P)
    squared.episodes = [type(e)(e.variant, e.tokens, e.reward**2) for e in tree.episodes]
    return squared.exact_values(sees_variant=True)


def _calibration_error(p: torch.Tensor, y: torch.Tensor) -> float:
    total = 0.0
    for b in range(10):
        inside = [(float(v), float(u)) for v, u in zip(p, y, strict=True) if min(int(float(v) * 10), 9) == b]
        if inside:
            total += abs(sum(u for _, u in inside) - sum(v for v, _ in inside))
    return total / len(p)
