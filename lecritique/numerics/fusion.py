"""Advantages modulated by a privileged teacher: VASPO's fusion with a critic, and RLSD's with a group baseline.

d_t is the teacher's log-prob of the sampled token minus the student's. N is any shape of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lecritique.numerics.precision import require_mask, require_shape, select, widen
from lecritique.numerics.whitening import whiten

# Tokens fused at once: what is read and written in between stays in the processor's cache.
_BLOCK = 1 << 16


def teacher_gap(teacher_logprobs_N: Tensor, logprobs_N: Tensor, *, action_mask_N: Tensor | None = None) -> Tensor:
    """How much more likely the teacher finds each sampled token than the student.

        d_t = log q(y_t) - lp(y_t)

    lp is lp_old, the trainer's log-prob before the update, so that d stays fixed through it; or, as an option, the
    current policy's at each forward: the result is detached in either case. Equal models without a context: 0.

    Args:
        teacher_logprobs_N: [N], of the teacher at the same temperature, nats.
        logprobs_N: [N], of the student, nats.
        action_mask_N: [N] bool; off it nothing is read and d is 0. None: all are actions.

    Returns:
        [N], nats, float32 or wider, detached.

    Raises:
        ValueError: shapes that differ or a mask that is not boolean.

    Source: VP section 3; method sheet section 6.
    """
    require_shape("student log-probs", logprobs_N, teacher_logprobs_N)
    return select(action_mask_N, widen(teacher_logprobs_N.detach()) - widen(logprobs_N.detach()))


def fusion_weight(gap_N: Tensor, *, eps_w: float = 0.2) -> Tensor:
    """By what an open gate multiplies an advantage.

        w_t = clip(exp(d_t), 1 - eps_w, 1 + eps_w)

    eps_w = 0, or d = 0: exactly 1.

    Args:
        gap_N: [N], d, nats.
        eps_w: in [0, 1].

    Returns:
        [N], in [1 - eps_w, 1 + eps_w], float32 or wider, detached.

    Raises:
        ValueError: an eps_w outside [0, 1].

    Source: VP section 3; method sheet section 6.
    """
    if not 0.0 <= eps_w <= 1.0:
        raise ValueError(f"eps_w must be in [0, 1], got {eps_w}")
    return widen(gap_N.detach()).exp().clamp(1.0 - eps_w, 1.0 + eps_w)


def fusion_gate(advantages_N: Tensor, gap_N: Tensor, *, tau: float = 0.02, delta: float = 0.02) -> Tensor:
    """Where the teacher may modulate an advantage.

        M_t = [A_t > 0] [|tanh(d_t / tau)| > delta]

    Both comparisons are strict, and A is the raw advantage, before any whitening. At the defaults the second is
    |d| > 4.0e-4 nats.

    Args:
        advantages_N: [N], A, raw, reward units.
        gap_N: [N], d, nats.
        tau: width of the gate, above 0, nats.
        delta: threshold, in [0, 1).

    Returns:
        [N] bool, True = modulated.

    Raises:
        ValueError: a constant outside its range or shapes that differ.

    Source: VP section 3; method sheet section 6.
    """
    if not (tau > 0.0 and 0.0 <= delta < 1.0):
        raise ValueError(f"tau must be above 0 and delta in [0, 1), got {tau} and {delta}")
    require_shape("gaps", gap_N, advantages_N)
    return (advantages_N.detach() > 0) & ((widen(gap_N.detach()) / tau).tanh().abs() > delta)


def fused_advantages(
    advantages_N: Tensor,
    gap_N: Tensor,
    *,
    eps_w: float = 0.2,
    tau: float = 0.02,
    delta: float = 0.02,
    masked: bool = True,
    whitened: bool = False,
    action_mask_N: Tensor | None = None,
) -> Tensor:
    """VASPO's advantages: the critic's, scaled where the teacher has something to say about a good token.

        A'_t = A_t (1 + M_t (w_t - 1)),   w = fusion_weight,   M = fusion_gate

    Bound: 1 - eps_w <= A' / A <= 1 + eps_w, before whitening. A closed gate, eps_w = 0 or d = 0 leave A as it is, bit
    for bit. `masked = False` sets M_t = 1 on every action token, whatever its sign. `whitened` then applies `whiten` to
    A' of these tokens, which must be the whole batch; a part of one is whitened by `whiten` with merged moments.
    With d recomputed from the current policy at each forward, leave `whitened` off.

    Args:
        advantages_N: [N], A, raw, reward units.
        gap_N: [N], d of `teacher_gap`, nats.
        eps_w: in [0, 1].
        tau: width of the gate, above 0, nats; not used without a mask.
        delta: threshold of the gate, in [0, 1); not used without a mask.
        masked: whether the gate is applied.
        whitened: whether A' is whitened.
        action_mask_N: [N] bool; off it nothing is read and the result is 0. None: all are actions.

    Returns:
        [N], reward units (dimensionless when whitened), float32 or wider, detached.

    Raises:
        ValueError: a constant outside its range, shapes that differ or a mask that is not boolean.

    Source: VP section 3; method sheet section 6.
    """
    require_shape("gaps", gap_N, advantages_N)
    everything = torch.ones_like(advantages_N, dtype=torch.bool) if action_mask_N is None else action_mask_N
    require_mask(everything, advantages_N)
    columns = (advantages_N.detach(), gap_N.detach(), everything)
    blocks = zip(*(torch.split(column.flatten(), _BLOCK) for column in columns), strict=True)
    pieces = [
        _fused_block(advantages, gap, mask, eps_w=eps_w, tau=tau, delta=delta, masked=masked)
        for advantages, gap, mask in blocks
    ]
    scaled = torch.cat(pieces).reshape(advantages_N.shape)
    return whiten(scaled, everything) if whitened else scaled


def _fused_block(
    advantages_N: Tensor, gap_N: Tensor, mask_N: Tensor, *, eps_w: float, tau: float, delta: float, masked: bool
) -> Tensor:
    advantages, gap = select(mask_N, widen(advantages_N)), select(mask_N, widen(gap_N))
    scaled = advantages * fusion_weight(gap, eps_w=eps_w)
    if masked:
        scaled = torch.where(fusion_gate(advantages, gap, tau=tau, delta=delta), scaled, advantages)
    return scaled


def rlsd_advantages(
    advantages_N: Tensor,
    gap_N: Tensor,
    *,
    mix: float,
    eps_w: float = 0.2,
    action_mask_N: Tensor | None = None,
) -> Tensor:
    """RLSD's advantages: the group's, scaled up where the teacher agrees with their sign and down where it does not.

        A'_t = A ((1 - mix) + mix clip(exp(sign(A) d_t), 1 - eps_w, 1 + eps_w))

    For A < 0 a token that the teacher also finds unlikely is punished more. mix = 0, eps_w = 0 or d = 0: the group
    advantage as it is, bit for bit. Bound: 1 - mix eps_w <= A' / A <= 1 + mix eps_w.

    Args:
        advantages_N: [N], A: `group_advantages` with scale `std`, broadcast to tokens, dimensionless.
        gap_N: [N], d of `teacher_gap`, nats.
        mix: in [0, 1], see `rlsd_mix`.
        eps_w: in [0, 1].
        action_mask_N: [N] bool; off it nothing is read and the result is 0. None: all are actions.

    Returns:
        [N], dimensionless, float32 or wider, detached.

    Raises:
        ValueError: a constant outside its range, shapes that differ or a mask that is not boolean.

    Source: 2604.03128; method sheet section 1.
    """
    if not 0.0 <= mix <= 1.0:
        raise ValueError(f"mix must be in [0, 1], got {mix}")
    require_shape("gaps", gap_N, advantages_N)
    advantages = select(action_mask_N, widen(advantages_N.detach()))
    gap = select(action_mask_N, widen(gap_N.detach()))
    weight = fusion_weight(advantages.sign() * gap, eps_w=eps_w)
    return advantages * (1.0 + mix * (weight - 1.0))


def rlsd_mix(step: int, start: float = 0.5, steps: int = 50) -> float:
    """How much of the teacher is mixed in at a step.

        mix = start max(0, 1 - step / steps)

    `start` at step 0, 0 from step `steps` on.

    Args:
        step: policy steps made, at least 0.
        start: in [0, 1].
        steps: over which it falls to 0, at least 1.

    Raises:
        ValueError: an argument outside its range.

    Source: 2604.03128; method sheet section 1.
    """
    if step < 0 or steps < 1 or not 0.0 <= start <= 1.0:
        raise ValueError(
            f"step must be at least 0, steps at least 1 and start in [0, 1], got {step}, {steps} and {start}"
        )
    return start * max(0.0, 1.0 - step / steps)
