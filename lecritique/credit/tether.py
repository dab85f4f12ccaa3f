"""Tether's state: the coefficient, and the window of rollouts whose fit moves it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from lecritique.core.errors import CheckpointError
from lecritique.numerics.tether import (
    TetherSums,
    tether_bucket,
    tether_bucket_sums,
    tether_ema,
    tether_fit,
    tether_sums,
)

# A bucket fits when at least one in so many of the window's rollouts reach it (LC's code).
_ROLLOUTS_PER_CONTRIBUTOR = 8


class TetherController:
    """Keeps rho for one environment and fits it over windows of exactly `batch_size` rollouts.

    Read `rho` once per group, credit the whole group with it, and only then observe the group's rollouts: so a
    group's coefficient never depends on its own returns. A window may close inside a group; the rest of the
    group stays pending for the next one. The coefficient starts at 0, the leave-one-out baseline.

    Args:
        batch_size: rollouts of a window.
        gamma: of the GAE that the pairs come from; part of the contract.
        gae_lambda: likewise.
        ridge: relative ridge of the fit.
        decay: of the running mean over windows.
        clip: whether fits are clipped to [0, 1].
    """

    def __init__(
        self,
        *,
        batch_size: int,
        gamma: float = 1.0,
        gae_lambda: float = 1.0,
        ridge: float = 1e-6,
        decay: float = 0.95,
        clip: bool = True,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"the Tether window needs at least 1 rollout, got batch_size {batch_size}")
        self._batch_size = batch_size
        self._ridge = ridge
        self._decay = decay
        self._clip = clip
        self._contract: dict[str, float | bool] = {
            "batch_size": batch_size,
            "gamma": float(gamma),
            "gae_lambda": float(gae_lambda),
            "ridge": float(ridge),
            "decay": float(decay),
            "clip": clip,
        }
        self._rho = 0.0
        self._pending = TetherSums()
        self._pending_rollouts = 0
        self._fits = 0
        self._skipped = 0
        self._last_fit: float | None = None
        self._last_sums: TetherSums | None = None

    @property
    def rho(self) -> float:
        """The coefficient for the next group."""
        return self._rho

    @property
    def fits(self) -> int:
        """Windows that moved rho."""
        return self._fits

    @property
    def skipped(self) -> int:
        """Windows whose fit was undefined and left rho as it was."""
        return self._skipped

    @property
    def last_fit(self) -> float | None:
        """rho_hat of the latest window before clipping; None before the first and after an undefined one."""
        return self._last_fit

    @property
    def last_sums(self) -> TetherSums | None:
        """Sums of the latest closed window, for diagnostics; not part of the state."""
        return self._last_sums

    @property
    def pending_rollouts(self) -> int:
        """Rollouts observed since the latest window closed."""
        return self._pending_rollouts

    def observe(self, x_N: Tensor, y_N: Tensor) -> bool:
        """Take in one rollout, in the order of scoring; True when it closed a window.

        Args:
            x_N: [N], V_t - B of its action tokens (all segments), see `tether_pairs`; N may be 0.
            y_N: [N], Q_t - B.
        """
        self._pending = self._pending.merge(tether_sums(x_N, y_N))
        self._pending_rollouts += 1
        if self._pending_rollouts < self._batch_size:
            return False
        self._close_window()
        return True

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, ready for JSON."""
        return {
            "contract": dict(self._contract),
            "rho": self._rho,
            "pending": asdict(self._pending),
            "pending_rollouts": self._pending_rollouts,
            "fits": self._fits,
            "skipped": self._skipped,
            "last_fit": self._last_fit,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: the state was saved under another contract, or lacks an entry.
        """
        require_contract("Tether", state.get("contract"), self._contract)
        try:
            pending = TetherSums(**state["pending"])
            last_fit = state["last_fit"]
            rho = float(state["rho"])
            pending_rollouts, fits, skipped = (int(state[key]) for key in ("pending_rollouts", "fits", "skipped"))
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the saved Tether state is incomplete: {error}") from error
        self._rho, self._last_fit, self._last_sums = rho, last_fit, None
        self._pending, self._pending_rollouts = pending, pending_rollouts
        self._fits, self._skipped = fits, skipped

    def _close_window(self) -> None:
        fit = tether_fit(self._pending, ridge=self._ridge)
        if fit is None:
            self._skipped += 1
        else:
            self._fits += 1
        self._rho = tether_ema(self._rho, fit, decay=self._decay, clip=self._clip)
        self._last_fit = fit
        self._last_sums = self._pending
        self._pending = TetherSums()
        self._pending_rollouts = 0


class BucketedTetherController:
    """Tether with one coefficient per bucket of positions along the response (LC section 7.3).

    All buckets share the window: `batch_size` rollouts in the order of scoring. When it closes, each bucket that at
    least ceil(batch_size / 8) of its rollouts reached is fitted on its own tokens and moves its coefficient as a
    `TetherController` does; the others keep theirs. With one bucket it is a `TetherController`.

    Args:
        buckets: see `tether_buckets`.
        batch_size: rollouts of a window.
        gamma: of the GAE that the pairs come from; part of the contract.
        gae_lambda: likewise.
        ridge: relative ridge of the fits.
        decay: of the running mean over windows.
        clip: whether fits are clipped to [0, 1].
    """

    def __init__(
        self,
        *,
        buckets: int,
        batch_size: int,
        gamma: float = 1.0,
        gae_lambda: float = 1.0,
        ridge: float = 1e-6,
        decay: float = 0.95,
        clip: bool = True,
    ) -> None:
        if batch_size < 1 or buckets < 1:
            raise ValueError(f"Tether needs at least 1 rollout and 1 bucket, got {batch_size} and {buckets}")
        self._batch_size = batch_size
        self._least_contributors = -(-batch_size // _ROLLOUTS_PER_CONTRIBUTOR)
        self._ridge = ridge
        self._decay = decay
        self._clip = clip
        self._contract: dict[str, float | bool] = {
            "buckets": buckets,
            "batch_size": batch_size,
            "gamma": float(gamma),
            "gae_lambda": float(gae_lambda),
            "ridge": float(ridge),
            "decay": float(decay),
            "clip": clip,
        }
        self._buckets = [_Bucket() for _ in range(buckets)]
        self._pending_rollouts = 0

    @property
    def rhos(self) -> tuple[float, ...]:
        """The coefficient of each bucket for the next group."""
        return tuple(bucket.rho for bucket in self._buckets)

    @property
    def fits(self) -> tuple[int, ...]:
        """Windows that moved each bucket's coefficient."""
        return tuple(bucket.fits for bucket in self._buckets)

    @property
    def skipped(self) -> tuple[int, ...]:
        """Windows that left each bucket's coefficient as it was: too few rollouts reached it, or an undefined fit."""
        return tuple(bucket.skipped for bucket in self._buckets)

    @property
    def last_fits(self) -> tuple[float | None, ...]:
        """rho_hat of each bucket in the latest window before clipping; None where it did not fit."""
        return tuple(bucket.last_fit for bucket in self._buckets)

    @property
    def pending_rollouts(self) -> int:
        """Rollouts observed since the latest window closed."""
        return self._pending_rollouts

    def rho_T(self, action_mask_T: Tensor, *, earlier_actions: int = 0) -> Tensor:
        """The coefficient of every token, for `tether_advantages`; 1 off the action mask.

        Args:
            action_mask_T: [T] bool, True on sampled tokens.
            earlier_actions: action tokens of the rollout's earlier segments.
        """
        position_T = earlier_actions + action_mask_T.cumsum(-1) - 1
        rhos = torch.tensor(self.rhos, dtype=torch.float64)
        by_token = rhos[tether_bucket(position_T.clamp(min=0), len(rhos))]
        return torch.where(action_mask_T, by_token, torch.ones_like(by_token))

    def observe(self, x_N: Tensor, y_N: Tensor) -> bool:
        """Take in one rollout, in the order of scoring; True when it closed a window.

        Args:
            x_N: [N], V_t - B of its action tokens (all segments) in order, see `tether_pairs`; N may be 0.
            y_N: [N], Q_t - B.
        """
        for bucket, sums in zip(self._buckets, tether_bucket_sums(x_N, y_N, len(self._buckets)), strict=True):
            bucket.pending = bucket.pending.merge(sums)
            bucket.contributors += sums.weight > 0
        self._pending_rollouts += 1
        if self._pending_rollouts < self._batch_size:
            return False
        for bucket in self._buckets:
            self._close_window(bucket)
        self._pending_rollouts = 0
        return True

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, ready for JSON."""
        return {
            "contract": dict(self._contract),
            "pending_rollouts": self._pending_rollouts,
            "buckets": [asdict(bucket) for bucket in self._buckets],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: the state was saved under another contract, or lacks an entry.
        """
        require_contract("bucketed Tether", state.get("contract"), self._contract)
        try:
            pending_rollouts = int(state["pending_rollouts"])
            saved = state["buckets"]
            buckets = [_Bucket(**(entry | {"pending": TetherSums(**entry["pending"])})) for entry in saved]
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the saved bucketed Tether state is incomplete: {error}") from error
        if len(buckets) != len(self._buckets):
            raise CheckpointError(f"the saved state has {len(buckets)} buckets, this run has {len(self._buckets)}")
        self._pending_rollouts, self._buckets = pending_rollouts, buckets

    def _close_window(self, bucket: _Bucket) -> None:
        reached = bucket.contributors >= self._least_contributors
        fit = tether_fit(bucket.pending, ridge=self._ridge) if reached else None
        bucket.rho = tether_ema(bucket.rho, fit, decay=self._decay, clip=self._clip)
        bucket.last_fit = fit
        bucket.fits += fit is not None
        bucket.skipped += fit is None
        bucket.pending, bucket.contributors = TetherSums(), 0


@dataclass(kw_only=True)
class _Bucket:
    """One bucket's coefficient, its part of the open window, and its counts."""

    rho: float = 0.0
    pending: TetherSums = field(default_factory=TetherSums)
    contributors: int = 0
    fits: int = 0
    skipped: int = 0
    last_fit: float | None = None


def require_contract(owner: str, saved: Any, expected: dict[str, Any]) -> None:
    """Raise CheckpointError, naming the key, unless a saved contract equals the one of this run."""
    if not isinstance(saved, dict):
        raise CheckpointError(f"the saved {owner} state has no contract")
    for key in sorted(expected.keys() | saved.keys()):
        if key not in saved or key not in expected or saved[key] != expected[key]:
            raise CheckpointError(
                f"{owner} was saved with {key} = {saved.get(key)}, this run has {expected.get(key)}: "
                f"resume with the same setting or start a new run"
            )
