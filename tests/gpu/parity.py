"""Do sampler, scoring and trainer mean the same number by a token's log-prob? Gaps in nats, in float32 and bfloat16.

Random weights: distributions are flat, and gaps are those of the arithmetic, not of a trained model's sharp peaks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.core.trajectory import Trajectory
from lecritique.models.scoring import action_logprobs, in_micro_batches, logprobs, token_row
from lecritique.models.weights import MemoryWeightStore
from lecritique.runtime.engines import embedded_engine, vllm_engine
from tests.gpu.device_clock import release
from tests.gpu.roles import Roles, completed, trajectory
from tests.gpu.workloads import Workload

# What kernels of different order may differ by. In bfloat16 the mean counts: single tokens differ by a rounding of a
# logit, 2^-8 of its size, and more where several roundings add up.
FLOAT32_MAX_NATS = 1e-3
BFLOAT16_MEAN_NATS = 0.02


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Differences between two readings of the same tokens, in nats, and the limit of the one that is held to one."""

    what: str
    dtype: str
    tokens: int
    mean_nats: float
    max_nats: float

    @property
    def within_limit(self) -> bool:
        """Whether float32's largest, or bfloat16's mean, is as small as it must be."""
        if self.dtype == "float32":
            return self.max_nats < FLOAT32_MAX_NATS
        return self.mean_nats < BFLOAT16_MEAN_NATS

    def record(self) -> dict[str, Any]:
        """For the table and the file."""
        return {**vars(self), "within_limit": self.within_limit}


def parity(work: Workload, device: str) -> list[Gap]:
    """All gaps of a workload that is cut to a few rows; those of vLLM only where it is installed."""
    few = replace(work, rows=min(work.rows, 16), new_tokens=min(work.new_tokens, 64))
    gaps = []
    for dtype in ("float32", "bfloat16"):
        gaps += _gaps(replace(few, dtype=dtype), device)
        release(device)
    return gaps


def _gaps(work: Workload, device: str) -> list[Gap]:
    roles, model, store = Roles(work, device), work.model(device), MemoryWeightStore()
    requests = roles.requests(work.new_tokens)
    engine = embedded_engine(model, store, roles.config)
    sampled = [trajectory(*pair) for pair in zip(requests, completed(engine, requests), strict=True)]
    engine.close()
    scored = scored_logprobs(model, work, sampled)
    gaps = [
        gap("sampler and scoring", work, of_sampler(sampled), scored),
        gap("scoring and trainer", work, scored, trained_logprobs(model, work, sampled)),
    ]
    if work.dtype == "bfloat16":
        whole = work.model(device, dtype="float32")
        whole.load_state_dict(model.state_dict())
        gaps.append(gap("scoring and float32", work, scored, scored_logprobs(whole, work, sampled)))
        del whole
    if importlib.util.find_spec("vllm") is not None:
        gaps.append(_gap_of_vllm(work, roles, model))
    return gaps


def _gap_of_vllm(work: Workload, roles: Roles, model: Any) -> Gap:
    """The same model in a replica on the same device, which leaves room for what is here already."""
    config = roles.config.model_copy(
        update={"runtime": roles.config.runtime.model_copy(update={"engine": small_replica()})}
    )
    engine = vllm_engine(model, MemoryWeightStore(), config, max_length=work.length)
    try:
        requests = roles.requests(work.new_tokens)
        sampled = [trajectory(*pair) for pair in zip(requests, completed(engine, requests), strict=True)]
    finally:
        engine.close()
    return gap("vLLM and scoring", work, of_sampler(sampled), scored_logprobs(model, work, sampled))


def small_replica() -> Any:
    """An engine that starts fast and takes a fifth of a GPU."""
    from lecritique.config.engines import Vllm

    return Vllm(enforce_eager=True, gpu_memory_utilization=0.2, cpu_cache_gib=0.25, rows=64)


def of_sampler(sampled: Sequence[Trajectory]) -> list[NDArray[np.float64]]:
    """What the sampler drew each token with."""
    return [each.sampler_logprobs[each.action_mask] for each in sampled]


def scored_logprobs(model: Any, work: Workload, sampled: Sequence[Trajectory]) -> list[NDArray[np.float64]]:
    """By the scoring pass, which shares prefixes and keeps nothing for a gradient."""
    rows = [token_row(each) for each in sampled]
    return logprobs(model, rows, temperature=1.0, max_tokens=work.micro_batch_tokens)


def trained_logprobs(model: Any, work: Workload, sampled: Sequence[Trajectory]) -> list[NDArray[np.float64]]:
    """By the pass that the policy's loss is taken from, with its gradient."""
    rows = [token_row(each) for each in sampled]
    found: list[NDArray[np.float64]] = [np.zeros(0)] * len(rows)
    for micro in in_micro_batches(model, rows, max_tokens=work.micro_batch_tokens):
        with torch.enable_grad():
            flat = action_logprobs(model, micro, temperature=1.0).detach().double().cpu().numpy()
        ends = np.cumsum(micro.counts)
        for index, piece in zip(micro.indices, np.split(flat, ends[:-1]), strict=True):
            found[index] = piece
    return found


def gap(what: str, work: Workload, left: Sequence[NDArray[np.float64]], right: Sequence[NDArray[np.float64]]) -> Gap:
    """Of two readings of the same tokens."""
    difference = np.abs(np.concatenate(left) - np.concatenate(right))
    return Gap(
        what=what,
        dtype=work.dtype,
        tokens=len(difference),
        mean_nats=float(difference.mean()),
        max_nats=float(difference.max()),
    )
