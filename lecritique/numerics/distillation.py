"""OPSD: how far the student's next-token distributions are from a teacher's, over the full vocabulary.

Log-probs of every word at every token do not fit in memory (8,192 tokens of 150,000 words are 4.6 GiB a matrix), so
the distributions are made from hidden states and head weights, a few tokens at a time, and made again for the
gradient. A row of words is never cut: it is small, and whole rows need one pass where pieces of rows need two.
Shapes: N tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lecritique.numerics.precision import require_mask, widen

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]

# Entries of one [tokens, V] matrix of a chunk; about eight such matrices of 4 bytes are alive at a time.
_CHUNK_ENTRIES = 1 << 23


def opsd_divergence(
    student_states_NH: Tensor,
    student_head_VH: Tensor,
    teacher_states_NH: Tensor,
    teacher_head_VH: Tensor,
    *,
    kind: Divergence = "forward_kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    action_mask_N: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Divergence between the next-token distributions of teacher and student at each token, in bounded memory.

        p = softmax(student_states student_head^T / temperature),   q likewise of the teacher
        forward_kl:  KL(q | p) = sum_v q_v (log q_v - log p_v)
        reverse_kl:  KL(p | q)
        jsd:         beta KL(q | m) + (1 - beta) KL(p | m),   m = beta q + (1 - beta) p

    Equals `divergence_of_logits` of the logits in full. 0 for equal distributions, never negative but for rounding;
    jsd is at most log 2 at beta 0.5. The student's states and head get gradients, the teacher's get none. The
    gradient is analytic and made chunk by chunk from recomputed logits, so memory does not grow with N.

    Args:
        student_states_NH: [N, H], hidden state from which token n is chosen.
        student_head_VH: [V, H], output weights.
        teacher_states_NH: [N, H'], likewise; constants.
        teacher_head_VH: [V, H'], constants.
        kind: `forward_kl` (default), `reverse_kl` or `jsd`.
        beta: weight of the teacher in `jsd`, in (0, 1).
        temperature: divides logits, above 0.
        action_mask_N: [N] bool; off it nothing is read, the result is 0 and so is its gradient. None: all are actions.
        chunk_tokens: tokens at a time, which changes results by rounding only; None: matrices of 2^23 entries.

    Returns:
        [N], nats, float32 or wider; reduce with `response_mean`.

    Raises:
        ValueError: shapes that do not go together, an unknown kind, or a constant outside its range.

    Source: 2601.18734; VP eq. 6; method sheet section 1.
    """
    _require_divergence(kind, beta)
    _require_inputs(student_states_NH, student_head_VH, teacher_states_NH, teacher_head_VH, temperature)
    if chunk_tokens is None:
        chunk_tokens = max(1, _CHUNK_ENTRIES // len(student_head_VH))
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    if action_mask_N is not None:
        require_mask(action_mask_N, student_states_NH[:, 0])
        student_states_NH, teacher_states_NH = student_states_NH[action_mask_N], teacher_states_NH[action_mask_N]
    divergence: Tensor = _ChunkedDivergence.apply(  # type: ignore[no-untyped-call]
        student_states_NH, student_head_VH, teacher_states_NH, teacher_head_VH, kind, beta, temperature, chunk_tokens
    )
    if action_mask_N is None:
        return divergence
    return divergence.new_zeros(action_mask_N.shape).masked_scatter(action_mask_N, divergence)


def divergence_of_logits(
    student_logits_NV: Tensor, teacher_logits_NV: Tensor, *, kind: Divergence = "forward_kl", beta: float = 0.5
) -> Tensor:
    """The same divergences from logits in full, for small vocabularies.

        p = softmax(student_logits),   q = softmax(teacher_logits),   result as in `opsd_divergence`

    Word by word a probability of 0 adds 0, also where the other log-prob is -inf in both.

    Args:
        student_logits_NV: [..., V], already divided by the temperature.
        teacher_logits_NV: [..., V], likewise; constants.
        kind: `forward_kl`, `reverse_kl` or `jsd`.
        beta: weight of the teacher in `jsd`, in (0, 1).

    Returns:
        [...], nats, float32 or wider, with gradient to the student.

    Raises:
        ValueError: shapes that differ, an unknown kind, or a beta outside (0, 1).

    Source: 2601.18734; VP eq. 6; method sheet section 1.
    """
    _require_divergence(kind, beta)
    if student_logits_NV.shape != teacher_logits_NV.shape:
        raise ValueError(
            f"teacher logits have shape {tuple(teacher_logits_NV.shape)}, expected {tuple(student_logits_NV.shape)}"
        )
    return _divergence(
        widen(student_logits_NV).log_softmax(-1), widen(teacher_logits_NV.detach()).log_softmax(-1), kind, beta
    )


def _divergence(log_p: Tensor, log_q: Tensor, kind: Divergence, beta: float) -> Tensor:
    if kind == "forward_kl":
        return _kl(log_q, log_p)
    if kind == "reverse_kl":
        return _kl(log_p, log_q)
    log_m = _log_mixture(log_p, log_q, beta)
    return beta * _kl(log_q, log_m) + (1.0 - beta) * _kl(log_p, log_m)


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """sum_v a_v (log a_v - log b_v), with 0 where a_v is 0."""
    impossible = log_a.isneginf()
    difference = torch.where(impossible, torch.zeros_like(log_a), log_a - log_b)
    return (log_a.exp() * difference).sum(-1)


def _log_mixture(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    share = torch.tensor([beta, 1.0 - beta], dtype=torch.float64).log().tolist()
    return torch.logaddexp(log_q + share[0], log_p + share[1])


def _student_gradient(log_p: Tensor, log_q: Tensor, kind: str, beta: float) -> Tensor:
    """The derivative of the divergence with respect to the student's logits.

    forward_kl: p - q.   reverse_kl: p (log(p/q) - KL(p|q)).   jsd: (1 - beta) p (log(p/m) - KL(p|m)).
    """
    p = log_p.exp()
    if kind == "forward_kl":
        return p.sub_(log_q.exp())
    other = log_q if kind == "reverse_kl" else _log_mixture(log_p, log_q, beta)
    ratio = torch.where(log_p.isneginf(), torch.zeros_like(log_p), log_p - other)
    slope = p * (ratio - (p * ratio).sum(-1, keepdim=True))
    return slope if kind == "reverse_kl" else slope.mul_(1.0 - beta)


def _log_probs(states_NH: Tensor, head_VH: Tensor, temperature: float) -> Tensor:
    logits = widen(states_NH @ head_VH.T)
    if temperature != 1.0:
        logits = logits / temperature
    return logits.log_softmax(-1)


class _ChunkedDivergence(torch.autograd.Function):
    """`divergence_of_logits` a chunk of tokens at a time; the backward pass makes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        student_states: Tensor,
        student_head: Tensor,
        teacher_states: Tensor,
        teacher_head: Tensor,
        kind: Divergence,
        beta: float,
        temperature: float,
        chunk: int,
    ) -> Tensor:
        ctx.save_for_backward(student_states, student_head, teacher_states, teacher_head)
        ctx.settings = kind, beta, temperature, chunk
        # Made first: small results kept between large matrices would keep the allocator from using their space again.
        dtype = widen(student_states).dtype
        divergence = torch.empty(len(student_states), dtype=dtype, device=student_states.device)
        for start in range(0, len(student_states), chunk):
            these = slice(start, start + chunk)
            log_p = _log_probs(student_states[these], student_head, temperature)
            log_q = _log_probs(teacher_states[these], teacher_head, temperature)
            divergence[these] = _divergence(log_p, log_q, kind, beta)
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        student_states, student_head, teacher_states, teacher_head = ctx.saved_tensors
        kind, beta, temperature, chunk = ctx.settings
        wants_states, wants_head = ctx.needs_input_grad[:2]
        grad_states = torch.empty_like(student_states) if wants_states else None
        grad_head = torch.zeros_like(student_head, dtype=grad_N.dtype) if wants_head else None
        for start in range(0, len(student_states), chunk):
            these = slice(start, start + chunk)
            log_p = _log_probs(student_states[these], student_head, temperature)
            log_q = _log_probs(teacher_states[these], teacher_head, temperature)
            grad_logits = _student_gradient(log_p, log_q, kind, beta)
            grad_logits *= grad_N[these, None] / temperature
            if grad_states is not None:
                grad_states[these] = grad_logits.to(student_head.dtype) @ student_head
            if grad_head is not None:
                grad_head.addmm_(grad_logits.T, student_states[these].to(grad_logits.dtype))
        return grad_states, None if grad_head is None else grad_head.to(student_head.dtype), *[None] * 6


def _require_divergence(kind: str, beta: float) -> None:
    if kind not in ("forward_kl", "reverse_kl", "jsd"):
        raise ValueError(f"kind must be 'forward_kl', 'reverse_kl' or 'jsd', got {kind!r}")
    if not 0.0 < beta < 1.0:
        raise ValueError(f"beta must be in (0, 1), got {beta}")


def _require_inputs(
    student_states: Tensor, student_head: Tensor, teacher_states: Tensor, teacher_head: Tensor, temperature: float
) -> None:
    if not temperature > 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    for who, states, head in (
        ("student", student_states, student_head),
        ("teacher", teacher_states, teacher_head),
    ):
        if states.dim() != 2 or head.dim() != 2 or states.shape[1] != head.shape[1]:
            raise ValueError(
                f"{who} states have shape {tuple(states.shape)} and its head {tuple(head.shape)}, "
                f"expected [tokens, width] and [vocabulary, width]"
            )
    if len(student_states) != len(teacher_states) or len(student_head) != len(teacher_head):
        raise ValueError(
            f"student and teacher must share tokens and vocabulary, got {len(student_states)} and "
            f"{len(teacher_states)} tokens, {len(student_head)} and {len(teacher_head)} words"
        )
