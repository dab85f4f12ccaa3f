"""Tether's state: windows, resume, contract."""

from __future__ import annotations

import json

import pytest
import torch

from lecritique.core.errors import CheckpointError
from lecritique.credit.tether import TetherController


def constant_fit(slope: float, tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """One rollout whose fit is `slope` (with ridge 0)."""
    x_N = torch.linspace(0.1, 0.9, tokens, dtype=torch.float64)
    return x_N, slope * x_N


def controller(**changed: float) -> TetherController:
    return TetherController(**{"batch_size": 4, "ridge": 0.0, **changed})


def test_fault_26_a_constant_fit_after_1_2_10_and_50_batches() -> None:
    state, seen = controller(), {}
    for batch in range(1, 51):
        for _ in range(4):
            state.observe(*constant_fit(0.8))
        seen[batch] = state.rho
    assert [round(seen[k], 3) for k in (1, 2, 10, 50)] == [0.04, 0.078, 0.321, 0.738]
    assert state.fits == 50
    assert state.last_fit == pytest.approx(0.8)


def test_a_window_closes_at_exactly_batch_size_rollouts_even_inside_a_group() -> None:
    state = controller(batch_size=3, decay=0.0)
    closed = [state.observe(*constant_fit(slope)) for slope in (0.2, 0.2, 0.2, 0.9)]
    assert closed == [False, False, True, False]
    assert state.rho == pytest.approx(0.2)
    assert state.pending_rollouts == 1
    for slope in (0.9, 0.9):
        state.observe(*constant_fit(slope))
    assert state.rho == pytest.approx(0.9)


def test_the_fit_is_weighted_by_tokens_not_by_rollouts() -> None:
    state = controller(batch_size=2, decay=0.0)
    state.observe(torch.tensor([1.0]), torch.tensor([0.0]))
    state.observe(torch.ones(3), torch.ones(3))
    assert state.rho == pytest.approx(0.75)


def test_an_empty_rollout_counts_towards_the_window_and_an_empty_window_is_skipped() -> None:
    state = controller(batch_size=2)
    nothing = torch.zeros(0)
    state.observe(nothing, nothing)
    assert state.observe(nothing, nothing)
    assert (state.fits, state.skipped, state.rho, state.last_fit) == (0, 1, 0.0, None)


def test_fault_25_an_undefined_fit_keeps_rho_and_is_counted() -> None:
    state = controller(batch_size=1, decay=0.5)
    state.observe(*constant_fit(0.6))
    before = state.rho
    state.observe(torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, 0.5]))
    assert (state.rho, state.fits, state.skipped) == (before, 1, 1)
    state.observe(torch.tensor([1.0]), torch.tensor([float("nan")]))
    assert (state.rho, state.fits, state.skipped) == (before, 1, 2)
    state.observe(*constant_fit(0.6))
    assert state.rho == pytest.approx(0.5 * before + 0.3)


def test_fits_are_clipped_unless_told_otherwise() -> None:
    for slope, clip, expected in ((1.7, True, 1.0), (1.7, False, 1.7), (-2.0, True, 0.0), (-2.0, False, -2.0)):
        state = controller(batch_size=1, decay=0.0, clip=clip)
        state.observe(*constant_fit(slope))
        assert state.rho == pytest.approx(expected)
        assert state.last_fit == pytest.approx(slope)


def test_fault_24_observing_a_group_changes_rho_only_for_the_next_one() -> None:
    one, other = controller(batch_size=2), controller(batch_size=2)
    read = one.rho, other.rho
    for state, slope in ((one, 0.1), (other, 0.9)):
        state.observe(*constant_fit(slope))
        state.observe(*constant_fit(slope))
    assert read == (0.0, 0.0)
    assert one.rho != other.rho


@pytest.mark.parametrize("stop", range(1, 12))
def test_fault_26_resume_at_any_rollout_equals_the_uninterrupted_run(stop: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rollouts = [torch.randn(2, n % 5, dtype=torch.float64, generator=generator) for n in range(12)]
    straight = controller()
    for x_N, y_N in rollouts:
        straight.observe(x_N, y_N)
    first = controller()
    for x_N, y_N in rollouts[:stop]:
        first.observe(x_N, y_N)
    resumed = controller()
    resumed.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    for x_N, y_N in rollouts[stop:]:
        resumed.observe(x_N, y_N)
    assert resumed.state() == straight.state()


def test_the_state_is_a_copy() -> None:
    state = controller()
    state.observe(*constant_fit(0.5))
    saved = state.state()
    text = json.dumps(saved)
    state.observe(*constant_fit(0.5))
    assert json.dumps(saved) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch_size", 5), ("gamma", 0.9), ("gae_lambda", 0.95), ("ridge", 1e-3), ("decay", 0.9), ("clip", False)],
)
def test_fault_26_a_changed_contract_at_resume_is_an_error_that_names_it(key: str, value: float) -> None:
    saved = controller().state()
    with pytest.raises(CheckpointError, match=f"{key} = "):
        controller(**{key: value}).restore(saved)


def test_an_incomplete_state_is_an_error_and_changes_nothing() -> None:
    state = controller(batch_size=1)
    state.observe(*constant_fit(0.5))
    before = state.state()
    for key in ("rho", "pending", "pending_rollouts", "fits", "skipped", "last_fit", "contract"):
        damaged = {name: entry for name, entry in controller(batch_size=1).state().items() if name != key}
        with pytest.raises(CheckpointError):
            state.restore(damaged)
        assert state.state() == before


def test_a_window_of_no_rollouts_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size 0"):
        controller(batch_size=0)
