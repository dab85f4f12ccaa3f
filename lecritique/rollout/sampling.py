"""Drawing one token per row by inverse CDF, with the log-prob that it was really drawn with."""

from __future__ import annotations

import torch

from lecritique.core.rollout import Sampling
from lecritique.models.scoring import scaled_logits


def draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B] and their log-probs [B] in nats under the distribution really sampled from.

    That is softmax(logits / temperature), cut to the top_k largest, then to the smallest set of
    most likely tokens whose mass reaches top_p, renormalised. One uniform in [0, 1) picks each
    token: the first whose cumulative mass, in the order of ids, exceeds it.
    """
    logits_BV = scaled_logits(logits_BV, sampling.temperature)
    if sampling.top_k:
        logits_BV = _top_k(logits_BV, sampling.top_k)
    if sampling.top_p < 1.0:
        logits_BV = _top_p(logits_BV, sampling.top_p)
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    mass_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    threshold_B1 = (uniforms_B.double() * mass_BV[:, -1])[:, None]
    tokens_B1 = torch.searchsorted(mass_BV, threshold_B1, right=True)
    tokens_B1 = tokens_B1.clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B1[:, 0], logprobs_BV.gather(-1, tokens_B1)[:, 0]


def _top_k(logits_BV: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.topk(logits_BV, min(k, logits_BV.shape[-1]), dim=-1).indices
    return torch.full_like(logits_BV, -torch.inf).scatter(-1, kept, logits_BV.gather(-1, kept))


def _top_p(logits_BV: torch.Tensor, p: float) -> torch.Tensor:
    ordered, order = torch.sort(logits_BV, dim=-1, descending=True, stable=True)
    mass = torch.softmax(ordered, dim=-1)
    # A token stays while the mass before it is short of p, so the first one always stays.
    ordered = ordered.masked_fill(mass.cumsum(dim=-1) - mass >= p, -torch.inf)
    return torch.empty_like(logits_BV).scatter(-1, order, ordered)
