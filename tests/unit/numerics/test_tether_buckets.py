"""Token-bucketed Tether and the score-norm-weighted optimum."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.numerics.tether import (
    TetherSums,
    score_norm_optimum,
    tether_advantages,
    tether_bucket,
    tether_bucket_sums,
    tether_buckets,
    tether_fit,
    tether_sums,
)

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("horizon", "buckets"),
    [(1, 2), (1024, 2), (3071, 2), (3072, 3), (8192, 8), (9000, 8), (131072, 128), (10**7, 128)],
)
def test_buckets_of_a_horizon(horizon: int, buckets: int) -> None:
    assert tether_buckets(horizon) == buckets


def test_bucket_of_a_position() -> None:
    positions = torch.tensor([0, 1023, 1024, 2047, 2048, 50000])
    assert tether_bucket(positions, 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert tether_bucket(positions, 1).tolist() == [0] * 6
    for arguments, match in (((positions, 0), "buckets"), ((torch.tensor([-1]), 3), "positions")):
        with pytest.raises(ValueError, match=match):
            tether_bucket(*arguments)
    with pytest.raises(ValueError, match="horizon"):
        tether_buckets(0)


@pytest.mark.parametrize("length", [0, 1, 1024, 1025, 5000])
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_bucket_sums_cover_each_token_once(length: int, buckets: int) -> None:
    x, y = normal(2, length, seed=length)
    sums = tether_bucket_sums(x, y, buckets)
    edges = [1024 * b for b in range(buckets)] + [max(length, 1024 * buckets)]
    for b, found in enumerate(sums):
        part = slice(edges[b], edges[b + 1])
        assert found == tether_sums(x[part], y[part])
    whole = TetherSums()
    for part in sums:
        whole = whole.merge(part)
    assert whole.weight == length
    assert whole.sxy == pytest.approx(tether_sums(x, y).sxy, rel=1e-12, abs=1e-12)


def test_a_rho_per_token_is_the_rho_of_each_token() -> None:
    advantages, values = normal(2, 3, 8)
    rho = torch.rand(3, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    rho[0, 0] = 1.0
    baseline = normal(3, seed=2)
    found = tether_advantages(advantages, values, baseline, rho)
    for i in range(3):
        for t in range(8):
            alone = tether_advantages(
                advantages[i, t : t + 1], values[i, t : t + 1], baseline[i].item(), rho[i, t].item()
            )
            assert found[i, t].item() == alone.item()
    constant = tether_advantages(advantages, values, baseline, torch.full((3, 8), 0.3, dtype=F64))
    assert torch.equal(constant, tether_advantages(advantages, values, baseline, 0.3))


def test_a_rho_of_one_on_some_tokens_is_the_value_estimator_bit_for_bit_there() -> None:
    advantages, values = torch.tensor([-0.0, 0.25, 0.5]), torch.tensor([math.inf, 0.5, 0.5])
    found = tether_advantages(advantages, values, 0.25, torch.tensor([1.0, 0.0, 1.0]))
    expected = torch.tensor([-0.0, 0.5, 0.5])
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_rho_off_the_mask_is_not_read() -> None:
    mask = torch.tensor([True, False])
    rho = torch.tensor([0.5, math.nan])
    found = tether_advantages(torch.tensor([0.5, 1.0]), torch.tensor([0.5, 1.0]), 0.0, rho, action_mask_T=mask)
    assert found.tolist() == [0.75, 0.0]
    with pytest.raises(ValueError, match="rho must be finite"):
        tether_advantages(torch.zeros(2), torch.zeros(2), 0.0, rho)
    with pytest.raises(ValueError, match="rho has shape"):
        tether_advantages(torch.zeros(2), torch.zeros(2), 0.0, torch.zeros(3))


def test_score_norm_optimum_by_hand_and_as_the_least_second_moment() -> None:
    x, y, norms = normal(3, 40)
    norms = norms.square()
    best = score_norm_optimum(x, y, norms)
    assert best == pytest.approx(float((norms * x * y).sum() / (norms * x * x).sum()), rel=1e-12)

    def second_moment(rho: float) -> float:
        return float((norms * (y - rho * x).square()).mean())

    assert second_moment(best) < min(second_moment(best - 1e-3), second_moment(best + 1e-3))
    assert score_norm_optimum(
        torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])
    ) == pytest.approx(0.75)


def test_equal_scores_are_the_plain_fit_and_scale_changes_nothing() -> None:
    x, y, norms = normal(3, 40)
    plain = tether_fit(tether_sums(x, y), ridge=0.0)
    assert score_norm_optimum(x, y, torch.full((40,), 7.0)) == pytest.approx(plain, rel=1e-12)
    best = score_norm_optimum(x, y, norms.square())
    assert score_norm_optimum(x, y, 1e-12 * norms.square()) == pytest.approx(best, rel=1e-12)


def test_a_score_norm_optimum_that_is_undefined_is_none() -> None:
    ones, zeros = torch.ones(3), torch.zeros(3)
    assert score_norm_optimum(zeros, ones, ones) is None
    assert score_norm_optimum(ones, ones, zeros) is None
    assert score_norm_optimum(ones[:0], ones[:0], ones[:0]) is None
    for norms, match in ((-ones, "at least 0"), (torch.ones(2), "score norms")):
        with pytest.raises(ValueError, match=match):
            score_norm_optimum(ones, ones, norms)
