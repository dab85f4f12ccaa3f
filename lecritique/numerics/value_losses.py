"""Value losses per token, and how a distribution over atoms stands for a number.

N is any shape of tokens, A the number of atoms, evenly spaced on [low, high] (reward units).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lecritique.core.errors import ConfigurationError, DivergenceError
from lecritique.numerics.precision import require_shape, select, widen

# Targets this far outside the support, relative to its width (at least 1), are rounding and are clamped.
_SUPPORT_TOLERANCE = 1e-5


def two_hot(targets_N: Tensor, *, low: float, high: float, atoms: int) -> Tensor:
    """Each target as weights on its two adjacent atoms.

        z_k = low + k (high - low) / (atoms - 1)
        w_k = max(0, 1 - |target - z_k| / (z_1 - z_0))

    The expectation of the atoms under the weights is the target. A target on an atom is one-hot. Two atoms on
    [0, 1]: (1 - target, target), the targets of binary cross-entropy.

    Args:
        targets_N: [N], reward units.
        low: the first atom.
        high: the last atom, above `low`.
        atoms: at least 2.

    Returns:
        [N, atoms], rows sum to 1; float32 or wider, detached.

    Raises:
        ValueError: a support that is empty or has fewer than 2 atoms.
        ConfigurationError: a target outside the support by more than 1e-5 max(high - low, 1); within, it is clamped.
        DivergenceError: a target that is not finite.

    Source: LC section 4.1; method sheet section 3.
    """
    _require_support(low, high, atoms)
    targets = widen(targets_N.detach())
    if not bool(targets.isfinite().all()):
        raise DivergenceError("a value target is not finite")
    tolerance = _SUPPORT_TOLERANCE * max(high - low, 1.0)
    outside = (targets < low - tolerance) | (targets > high + tolerance)
    if bool(outside.any()):
        raise ConfigurationError(
            f"value target {float(targets[outside][0]):g} lies outside the critic's support [{low:g}, {high:g}]: "
            f"widen the support or check the task's reward range"
        )
    places = (targets.clamp(low, high) - low) * ((atoms - 1) / (high - low))
    index_A = torch.arange(atoms, dtype=targets.dtype, device=targets.device)
    return (1.0 - (places.unsqueeze(-1) - index_A).abs()).clamp(min=0.0)


def categorical_value(logits_NA: Tensor, *, low: float, high: float) -> Tensor:
    """The expectation of the atoms.

        V = sum_k softmax(logits)_k z_k

    Always within [low, high]. Two atoms on [0, 1]: the sigmoid of the difference of the two logits.

    Args:
        logits_NA: [N, A].
        low: the first atom, reward units.
        high: the last atom, reward units.

    Returns:
        [N], reward units, float32 or wider, with gradient.

    Raises:
        ValueError: a support that is empty or has fewer than 2 atoms.

    Source: LC section 4.1; method sheet section 3.
    """
    logits = widen(logits_NA)
    _require_support(low, high, logits.shape[-1])
    atoms_A = torch.linspace(low, high, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits.softmax(-1) * atoms_A).sum(-1)


def categorical_loss(
    logits_NA: Tensor, targets_N: Tensor, *, low: float, high: float, action_mask_N: Tensor | None = None
) -> Tensor:
    """Cross-entropy between the two-hot target and the predicted distribution, per token.

        loss = -sum_k w_k log softmax(logits)_k,   gradient softmax(logits) - w

    Its minimum over the logits is the entropy of w, at softmax(logits) = w, where V is the target. Two atoms on
    [0, 1] is `bce`: binary cross-entropy with logits l_1 - l_0. Finite for any finite logits.

    Args:
        logits_NA: [N, A], A >= 2.
        targets_N: [N], reward units, constants.
        low: the first atom, reward units.
        high: the last atom, reward units.
        action_mask_N: [N] bool; off it nothing is read and the loss and its gradient are constant. None: all count.

    Returns:
        [N], nats; reduce with `token_mean`.

    Raises:
        ValueError: shapes that differ, or what `two_hot` refuses of the support.
        ConfigurationError: a target outside the support.
        DivergenceError: a target that is not finite.

    Source: LC section 4.1; method sheet section 3.
    """
    logits = widen(logits_NA)
    if logits.shape[:-1] != targets_N.shape:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected {tuple(targets_N.shape)} + (atoms,)")
    targets = select(action_mask_N, widen(targets_N.detach()), fill=low)
    if action_mask_N is not None:
        logits = torch.where(action_mask_N.unsqueeze(-1), logits, torch.zeros_like(logits))
    weights_NA = two_hot(targets, low=low, high=high, atoms=logits.shape[-1])
    loss = -(weights_NA.to(logits.dtype) * logits.log_softmax(-1)).sum(-1)
    return select(action_mask_N, loss)


def mse_loss(values_N: Tensor, targets_N: Tensor, *, action_mask_N: Tensor | None = None) -> Tensor:
    """Half the squared error, per token.

        loss = 0.5 (v - G)^2,   gradient v - G

    The value is read from a linear output: no squashing, any reward range.

    Args:
        values_N: [N], reward units.
        targets_N: [N], reward units, constants.
        action_mask_N: [N] bool; off it nothing is read and the loss is 0. None: all count.

    Returns:
        [N], reward units squared; reduce with `token_mean`.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: method sheet section 3.
    """
    require_shape("targets", targets_N, values_N)
    values = select(action_mask_N, widen(values_N))
    return 0.5 * (values - select(action_mask_N, widen(targets_N.detach()))).square()


def _require_support(low: float, high: float, atoms: int) -> None:
    if not high > low:
        raise ValueError(f"the support needs low < high, got [{low}, {high}]")
    if atoms < 2:
        raise ValueError(f"the support needs at least 2 atoms, got {atoms}")
