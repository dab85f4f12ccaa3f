"""How well values fit their targets: explained variance, bias and mean squared error over action tokens."""

from __future__ import annotations

from torch import Tensor

from lecritique.core.metrics import ValueFit
from lecritique.core.moments import Moments
from lecritique.numerics.precision import require_mask, require_shape


def value_fit(values_N: Tensor, targets_N: Tensor, mask_N: Tensor | None = None) -> ValueFit:
    """Mergeable moments of the error G - V and of the target G, over the tokens on the mask.

        EV = 1 - Var(G - V) / Var(G)

    Merged fits are pooled over all their tokens: never an average of averages.

    Args:
        values_N: [N], reward units.
        targets_N: [N], reward units.
        mask_N: [N] bool, True = counted; None counts all.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: LC section 4.3; method sheet section 3.
    """
    require_shape("targets", targets_N, values_N)
    values, targets = values_N.detach().double(), targets_N.detach().double()
    if mask_N is not None:
        require_mask(mask_N, values)
        values, targets = values[mask_N], targets[mask_N]
    return ValueFit(error=Moments.of((targets - values).cpu().numpy()), target=Moments.of(targets.cpu().numpy()))


def explained_variance(values_N: Tensor, targets_N: Tensor, mask_N: Tensor | None = None) -> float:
    """The share of the targets' variance that the values explain.

        EV = 1 - Var(G - V) / Var(G), population variances

    1 for V = G and for V = G + constant (bias and MSE stand beside it in `value_fit`), 0 for a constant V,
    negative when V is worse than a constant, NaN when Var(G) < 1e-12.

    Args:
        values_N: [N], reward units.
        targets_N: [N], reward units.
        mask_N: [N] bool, True = counted; None counts all.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: LC section 4.3; method sheet section 3.
    """
    return value_fit(values_N, targets_N, mask_N).value()
