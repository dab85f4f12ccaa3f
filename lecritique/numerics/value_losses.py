"""Value losses per token, and how a distribution over atoms stands for a number.

N is any shape of tokens, A the number of atoms, evenly spaced on [low, high] (reward units).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lecritique.core.errors import ConfigurationError, DivergenceError
from lecritique.numerics.precision import require_shape, select, widen

# Targets this far outside the support, relative to its width (at least 1), are rounding and are clamped.
_SUPPORT_TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedValueLoss:
    """Loss of every token, and whether its clipped term was strictly the larger (its gradient is then 0)."""

    loss_N: Tensor
    clipped_N: Tensor


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
    places = _places(targets_N, low, high, atoms).unsqueeze(-1)
    index_A = torch.arange(atoms, dtype=places.dtype, device=places.device)
    return (1.0 - (places - index_A).abs()).clamp(min=0.0)


def hl_gauss(targets_N: Tensor, *, low: float, high: float, atoms: int, sigma_bins: float = 0.75) -> Tensor:
    """Each target as a Gaussian around it, cut into one bin per atom.

        w_k proportional to Phi((z_k + b/2 - target) / sigma) - Phi((z_k - b/2 - target) / sigma)
        z_k = low + k b,   b = (high - low) / (atoms - 1),   sigma = sigma_bins b

    Atoms are the middles of the bins, the support ends half a bin outside the first and the last, and the weights
    are divided by their sum. Neighbouring atoms share the target's mass, which `two_hot` gives to two. The
    expectation of the atoms is the target to 1e-2 b where the ends are 3 sigma away; next to an end, mass is cut and
    the expectation lies up to 0.45 b further inside. A sigma towards 0 is one-hot on the nearest atom.

    Args:
        targets_N: [N], reward units.
        low: the first atom.
        high: the last atom, above `low`.
        atoms: at least 2.
        sigma_bins: width of the Gaussian in bins, above 0.

    Returns:
        [N, atoms], rows sum to 1; float32 or wider, detached.

    Raises:
        ValueError: what `two_hot` refuses of the support, or a sigma that is not above 0.
        ConfigurationError: a target outside the support, as in `two_hot`.
        DivergenceError: a target that is not finite.

    Source: 2403.03950 (Farebrother et al. 2024), sigma of 0.75 bins; method sheet section 3.
    """
    if not sigma_bins > 0.0:
        raise ValueError(f"sigma_bins must be above 0, got {sigma_bins}")
    places = _places(targets_N, low, high, atoms).unsqueeze(-1)
    edges = torch.arange(atoms + 1, dtype=places.dtype, device=places.device) - 0.5
    below = torch.erf((edges - places) / (sigma_bins * math.sqrt(2.0)))
    mass = below.diff(dim=-1)
    return mass / (below[..., -1:] - below[..., :1])


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
    logits, targets = _selected_logits(logits_NA, targets_N, low, action_mask_N)
    return _cross_entropy(logits, two_hot(targets, low=low, high=high, atoms=logits.shape[-1]), action_mask_N)


def hl_gauss_loss(
    logits_NA: Tensor,
    targets_N: Tensor,
    *,
    low: float,
    high: float,
    sigma_bins: float = 0.75,
    action_mask_N: Tensor | None = None,
) -> Tensor:
    """Cross-entropy between the histogram of a Gaussian around the target and the predicted distribution, per token.

        loss = -sum_k w_k log softmax(logits)_k,   w = hl_gauss(target),   gradient softmax(logits) - w

    `categorical_loss` with `hl_gauss` in place of `two_hot`; the value is `categorical_value`.

    Args:
        logits_NA: [N, A], A >= 2.
        targets_N: [N], reward units, constants.
        low: the first atom, reward units.
        high: the last atom, reward units.
        sigma_bins: width of the Gaussian in bins, above 0.
        action_mask_N: [N] bool; off it nothing is read and the loss and its gradient are constant. None: all count.

    Returns:
        [N], nats; reduce with `token_mean`.

    Raises:
        ValueError: shapes that differ, or what `hl_gauss` refuses.
        ConfigurationError: a target outside the support.
        DivergenceError: a target that is not finite.

    Source: 2403.03950; method sheet section 3.
    """
    logits, targets = _selected_logits(logits_NA, targets_N, low, action_mask_N)
    weights_NA = hl_gauss(targets, low=low, high=high, atoms=logits.shape[-1], sigma_bins=sigma_bins)
    return _cross_entropy(logits, weights_NA, action_mask_N)


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


def clipped_mse(
    values_N: Tensor,
    old_values_N: Tensor,
    targets_N: Tensor,
    *,
    eps_v: float = 0.5,
    action_mask_N: Tensor | None = None,
) -> ClippedValueLoss:
    """Half the squared error, or that of the value held within eps_v of the old one where that is larger, per token.

        v_clip = clip(v, v_old - eps_v, v_old + eps_v)
        loss   = 0.5 max((v - G)^2, (v_clip - G)^2)

    A value that has moved more than eps_v towards its target no longer moves; one that has moved away from it is
    pulled back in full. The clip fraction is the mean of `clipped_N` over action tokens. v = v_old, or an infinite
    eps_v: `mse_loss`. The 1/2 is VP's value-loss coefficient.

    Args:
        values_N: [N], v of the critic now, reward units.
        old_values_N: [N], v_old of the critic before the update, reward units, constants.
        targets_N: [N], G, reward units, constants.
        eps_v: reward units, at least 0.
        action_mask_N: [N] bool; off it nothing is read, the loss is 0 and nothing is clipped. None: all count.

    Raises:
        ValueError: a negative eps_v, shapes that differ or a mask that is not boolean.

    Source: VP eq. 8-9 (eps_v from common use); method sheet section 3.
    """
    if not eps_v >= 0.0:
        raise ValueError(f"eps_v must be at least 0, got {eps_v}")
    require_shape("old values", old_values_N, values_N)
    old = select(action_mask_N, widen(old_values_N.detach()))
    targets = select(action_mask_N, widen(targets_N.detach()))
    loss = mse_loss(values_N, targets_N, action_mask_N=action_mask_N)
    values = select(action_mask_N, widen(values_N.detach()))
    held = torch.maximum(torch.minimum(values, old + eps_v), old - eps_v)
    clipped_loss = 0.5 * (held - targets).square()
    clipped = clipped_loss > loss.detach()
    return ClippedValueLoss(loss_N=torch.where(clipped, clipped_loss, loss), clipped_N=clipped)


def _places(targets_N: Tensor, low: float, high: float, atoms: int) -> Tensor:
    """Targets in units of the atom spacing, counted from the first atom, once they are known to lie on the support."""
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
    return (targets.clamp(low, high) - low) * ((atoms - 1) / (high - low))


def _selected_logits(
    logits_NA: Tensor, targets_N: Tensor, low: float, action_mask_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Logits and targets in float32 or wider, harmless off the mask."""
    logits = widen(logits_NA)
    if logits.shape[:-1] != targets_N.shape:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected {tuple(targets_N.shape)} + (atoms,)")
    targets = select(action_mask_N, widen(targets_N.detach()), fill=low)
    if action_mask_N is not None:
        logits = torch.where(action_mask_N.unsqueeze(-1), logits, torch.zeros_like(logits))
    return logits, targets


def _cross_entropy(logits_NA: Tensor, weights_NA: Tensor, action_mask_N: Tensor | None) -> Tensor:
    loss = -(weights_NA.to(logits_NA.dtype) * logits_NA.log_softmax(-1)).sum(-1)
    return select(action_mask_N, loss)


def _require_support(low: float, high: float, atoms: int) -> None:
    if not high > low:
        raise ValueError(f"the support needs low < high, got [{low}, {high}]")
    if atoms < 2:
        raise ValueError(f"the support needs at least 2 atoms, got {atoms}")
