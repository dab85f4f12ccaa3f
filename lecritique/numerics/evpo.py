"""EVPO's choice between the critic and the group mean."""

from __future__ import annotations


def evpo_uses_critic(explained_variance: float) -> bool:
    """Whether a batch is credited by the critic (True) or by the group mean (False).

        uses critic  <=>  EV > 0

    At EV = 0 the critic explains nothing; NaN (targets without variance) compares false: the group mean.

    Args:
        explained_variance: EV of the batch, dimensionless, NaN when undefined.

    Raises:
        Nothing.

    Source: 2604.19485; method sheet section 5.
    """
    return explained_variance > 0.0
