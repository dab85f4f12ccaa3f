"""State of the lambda that adapts to the critic's measured accuracy: running means over earlier batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lecritique.config.estimators import AdaptiveLambda
from lecritique.core.errors import CheckpointError
from lecritique.core.metrics import Mean
from lecritique.credit.tether import require_contract
from lecritique.numerics.adaptive_lambda import adaptive_lambda, critic_error_share, within_group_variance


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What lambda is chosen from; merges, and fades as time goes by."""

    squared_error: Mean = field(default_factory=Mean)
    """(R - V)^2 over action tokens: against returns, whatever the value targets are."""
    variance: Mean = field(default_factory=Mean)
    """Variance of returns within groups, `within_group_variance`."""
    length: Mean = field(default_factory=Mean)
    """Action tokens over responses."""

    def after(self, earlier: Measured, decay: float) -> Measured:
        """This batch together with the earlier ones, which weigh `decay` of what they did."""
        return Measured(
            squared_error=faded(earlier.squared_error, decay).merge(self.squared_error),
            variance=faded(earlier.variance, decay).merge(self.variance),
            length=faded(earlier.length, decay).merge(self.length),
        )


def measured(returns_K: Tensor, values: Sequence[NDArray[np.float64]]) -> Measured:
    """One group: its returns, and each member's values on its action tokens (one [N] per member)."""
    result = Measured(variance=within_group_variance(returns_K))
    for episode_return, values_N in zip(returns_K.tolist(), values, strict=True):
        error = Mean(float(np.square(episode_return - values_N).sum()), len(values_N))
        own = Measured(squared_error=error, length=Mean(len(values_N), 1) if len(values_N) else Mean())
        result = own.after(result, 1.0)
    return result


def faded(mean: Mean, decay: float) -> Mean:
    """The same mean with `decay` of its weight."""
    return Mean(decay * mean.total, decay * mean.count)


class LambdaController:
    """Keeps the lambda for the next batch.

    Read `gae_lambda` once per batch, credit the batch with it, and only then observe its groups: so a batch's lambda
    never depends on its own returns. Until something is observed it is 1, which needs no critic to be right.

    Args:
        config: bias weight, open share and decay.
    """

    def __init__(self, config: AdaptiveLambda) -> None:
        self._config = config
        self._seen = Measured()

    @property
    def gae_lambda(self) -> float:
        """The lambda for the next batch."""
        seen, config = self._seen, self._config
        if not seen.length.count:
            return 1.0
        share = critic_error_share(seen.squared_error.value(), seen.variance.value(), open_share=config.open_share)
        return adaptive_lambda(share, seen.length.value(), bias_weight=config.bias_weight)

    def observe(self, groups: Sequence[Measured]) -> None:
        """Take in the groups of one batch, once it is credited; without any nothing fades."""
        batch = Measured()
        for group in groups:
            batch = group.after(batch, 1.0)
        if groups:
            self._seen = batch.after(self._seen, self._config.decay)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, ready for JSON."""
        return {"contract": self._config.model_dump(), "seen": asdict(self._seen)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: the state was saved under another contract, or lacks an entry.
        """
        require_contract("the adaptive lambda", state.get("contract"), self._config.model_dump())
        try:
            self._seen = Measured(**{name: Mean(**mean) for name, mean in state["seen"].items()})
        except (AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(f"the saved state of the adaptive lambda is incomplete: {error}") from error
