"""Tether's state: the coefficient, and the window of rollouts whose fit moves it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from lecritique.core.errors import CheckpointError
from lecritique.numerics.tether import TetherSums, tether_ema, tether_fit, tether_sums


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
