"""Decoding written out: a full forward pass of one sequence for every token, no cache, no batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from small_models import rollout_id

from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, Sampling
from lecritique.core.seeds import uniforms


def request(
    token_ids: Sequence[int],
    *,
    member: int = 0,
    turn: int = 0,
    sequence: RolloutId | None = None,
    max_new_tokens: int = 8,
    stop_ids: frozenset[int] = frozenset({3, 4, 17}),
    sampling: Sampling | None = None,
    seed: int | None = None,
) -> GenerateRequest:
    """A request of one member; its seed follows from member and turn."""
    return GenerateRequest(
        request_id=f"{member}.{turn}",
        sequence_id=rollout_id(member) if sequence is None else sequence,
        token_ids=np.array(token_ids),
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        sampling=sampling or Sampling(),
        seed=1000 * member + turn if seed is None else seed,
    )


def probabilities(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """The distribution sampled from, in plain Python: temperature, then top_k, then top_p, renormalised."""
    scaled = [value / sampling.temperature for value in logits]
    highest = max(scaled)
    mass = [float(np.exp(value - highest)) for value in scaled]
    order = sorted(range(len(mass)), key=lambda token: -mass[token])
    kept = order[: sampling.top_k] if sampling.top_k else order
    total, before, nucleus = sum(mass[token] for token in kept), 0.0, []
    for token in kept:
        if before < sampling.top_p:
            nucleus.append(token)
        before += mass[token] / total
    total = sum(mass[token] for token in nucleus)
    return [mass[token] / total if token in nucleus else 0.0 for token in range(len(mass))]


@dataclass
class Decoded:
    """What a literal loop sampled."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "length"


@torch.no_grad()
def decoded(policy, of: GenerateRequest) -> Decoded:
    """Continue a request token by token."""
    ids, out = of.token_ids.tolist(), Decoded()
    for _ in range(of.max_new_tokens):
        logits = policy(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].tolist()
        chances = probabilities(logits, of.sampling)
        threshold = float(uniforms(of.seed, len(ids)))
        token = next(token for token in range(len(chances)) if sum(chances[: token + 1]) > threshold)
        ids.append(token)
        out.token_ids.append(token)
        out.logprobs.append(float(np.log(chances[token])))
        if token in of.stop_ids:
            out.finish_reason = "stop"
            break
    return out


def assert_equal(found: Completion, expected: Decoded) -> None:
    """Ids and finish reason exactly, log-probs to 1e-10."""
    assert found.token_ids.tolist() == expected.token_ids
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=0, atol=1e-10)
    assert found.finish_reason == expected.finish_reason


def drained(sampler) -> Mapping[str, Completion]:
    """Every completion of a sampler, by request id."""
    done: dict[str, Completion] = {}
    while sampler.busy:
        done |= {completion.request_id: completion for completion in sampler.chunk()}
    return done
