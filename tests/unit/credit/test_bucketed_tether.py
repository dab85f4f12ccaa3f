"""The bucketed controller: windows, who contributes, identity with the plain one, checkpoints."""

from __future__ import annotations

import json

import pytest
import torch

from lecritique.core.errors import CheckpointError
from lecritique.credit.tether import BucketedTetherController, TetherController

F64 = torch.float64


def controller(**changed) -> BucketedTetherController:
    return BucketedTetherController(**({"buckets": 3, "batch_size": 4} | changed))


def rollout(length: int, *slopes: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x = 1 and y = the slope of the token's bucket."""
    bucket = (torch.arange(length) // 1024).clamp(max=len(slopes) - 1)
    return torch.ones(length, dtype=F64), torch.tensor(slopes, dtype=F64)[bucket]


def test_each_bucket_learns_its_own_slope_at_its_own_tokens() -> None:
    state = controller(ridge=0.0)
    for _ in range(2):
        for _ in range(4):
            state.observe(*rollout(3000, 0.2, 0.5, 0.8))
    expected = [slope * (1 - 0.95**2) for slope in (0.2, 0.5, 0.8)]
    assert list(state.rhos) == pytest.approx(expected, abs=1e-14)
    assert state.fits == (2, 2, 2)
    assert state.last_fits == pytest.approx((0.2, 0.5, 0.8))


def test_a_bucket_needs_an_eighth_of_the_window() -> None:
    # Of 17 rollouts at least 3 have to reach a bucket; four tokens each are enough.
    for long, fits in ((2, (1, 0)), (3, (1, 1))):
        state = controller(buckets=2, batch_size=17)
        for i in range(17):
            closed = state.observe(*rollout(1028 if i < long else 10, 0.5, 0.5))
            assert closed == (i == 16)
        assert state.fits == fits
        assert state.skipped == (0, 1 - fits[1])
        assert (state.rhos[1] > 0) == bool(fits[1])


def test_contributors_are_counted_per_window() -> None:
    state = controller(buckets=2, batch_size=16)
    for i in range(32):
        state.observe(*rollout(2000 if i in (0, 16) else 10, 0.5, 0.5))
    assert state.fits == (2, 0)
    assert state.skipped == (0, 2)


def test_an_undefined_fit_keeps_the_coefficient_of_its_bucket_only() -> None:
    state = controller(buckets=2, batch_size=1)
    state.observe(*rollout(2000, 0.6, 0.6))
    before = state.rhos
    x, y = rollout(2000, 0.6, 0.6)
    x[1024:] = 0.0
    state.observe(x, y)
    assert state.rhos[0] > before[0]
    assert state.rhos[1] == before[1]
    assert state.skipped == (0, 1)
    assert state.last_fits[1] is None


@pytest.mark.parametrize("clip", [True, False])
def test_one_bucket_is_the_plain_controller(clip: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    plain, bucketed = TetherController(batch_size=4, clip=clip), controller(buckets=1, clip=clip)
    for n in range(30):
        x, y = torch.randn(2, 1 + n % 5, dtype=F64, generator=generator)
        assert plain.observe(x, 3 * y) == bucketed.observe(x, 3 * y)
        assert bucketed.rhos == (plain.rho,)
    assert bucketed.fits == (plain.fits,) == (7,)
    assert bucketed.pending_rollouts == plain.pending_rollouts == 2


def test_the_window_closes_at_exactly_the_batch_also_for_empty_rollouts() -> None:
    state = controller()
    empty = torch.zeros(0, dtype=F64)
    assert [state.observe(empty, empty) for _ in range(8)] == [False, False, False, True] * 2
    assert state.skipped == (2, 2, 2)


def test_rho_of_tokens_counts_action_tokens_and_goes_on_in_later_segments() -> None:
    state = controller(ridge=0.0, decay=0.0, batch_size=1)
    state.observe(*rollout(3000, 0.1, 0.2, 0.3))
    mask = torch.ones(2100, dtype=torch.bool)
    mask[:50] = False
    rho = state.rho_T(mask)
    assert rho[:50].eq(1.0).all()
    positions = torch.arange(2050)
    expected = torch.tensor([0.1, 0.2, 0.3], dtype=F64)[positions // 1024]
    assert torch.allclose(rho[50:], expected, atol=1e-15)
    later = state.rho_T(torch.ones(3, dtype=torch.bool), earlier_actions=1023)
    assert later.tolist() == pytest.approx([0.1, 0.2, 0.2])


@pytest.mark.parametrize("stop", [1, 4, 6, 11])
def test_resume_at_any_rollout_equals_the_uninterrupted_run(stop: int) -> None:
    generator = torch.Generator().manual_seed(1)
    rollouts = [torch.randn(2, 700 * (n % 5), dtype=F64, generator=generator) for n in range(12)]
    straight, first, resumed = controller(), controller(), controller()
    for x, y in rollouts:
        straight.observe(x, y)
    for x, y in rollouts[:stop]:
        first.observe(x, y)
    saved = first.state()
    text = json.dumps(saved, allow_nan=False)
    first.observe(*rollouts[stop])
    assert json.dumps(saved) == text
    resumed.restore(json.loads(text))
    for x, y in rollouts[stop:]:
        resumed.observe(x, y)
    assert resumed.state() == straight.state()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buckets", 2),
        ("batch_size", 5),
        ("gamma", 0.9),
        ("gae_lambda", 0.9),
        ("ridge", 1e-3),
        ("decay", 0.9),
        ("clip", False),
    ],
)
def test_a_changed_contract_at_resume_is_an_error_that_names_it(key: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=f"{key} = "):
        controller(**{key: value}).restore(controller().state())


def test_an_incomplete_state_is_an_error_and_changes_nothing() -> None:
    state = controller()
    state.observe(*rollout(10, 0.5))
    before = state.state()
    whole = controller().state()
    damaged = [{k: v for k, v in whole.items() if k != key} for key in whole]
    damaged.append(whole | {"buckets": whole["buckets"][:2]})
    damaged.append(whole | {"buckets": [{"rho": 0.0}] * 3})
    for entry in damaged:
        with pytest.raises(CheckpointError):
            state.restore(entry)
        assert state.state() == before


def test_no_bucket_and_no_rollout_are_refused() -> None:
    for changed in ({"buckets": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            controller(**changed)
