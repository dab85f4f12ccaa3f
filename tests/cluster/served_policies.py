"""Policies that vLLM serves, and their log-probs by the trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lecritique.config.load import compose, load_recipe
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, Sampling
from lecritique.models.loading import load_causal_lm
from lecritique.models.scoring import TokenRow, logprobs
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_engine import VllmEngine
from lecritique.runtime.engines import vllm_engine

SECONDS = 900.0
# Four orders of magnitude below what stale weights or keys would make of it.
CLOSE_NATS = 1e-3
ENGINE = ("runtime.engine.type=vllm", "runtime.engine.enforce_eager=true", "runtime.engine.cpu_cache_gib=0.5")


def started(model: Any, store: MemoryWeightStore, *overrides: str, max_length: int = 256) -> VllmEngine:
    config = compose(load_recipe("demo"), overrides=[*ENGINE, *overrides])
    return vllm_engine(model, store, config, max_length=max_length)


class Policy:
    """A model that changes, its store, and an engine that follows it."""

    def __init__(self, name: str, *overrides: str) -> None:
        self.model = load_causal_lm(name).model
        self.first = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.store = MemoryWeightStore()
        self.store.put("policy", self.model.state_dict())
        self.engine = started(self.model, self.store, *overrides)
        self.vocabulary = self.model.get_input_embeddings().weight.shape[0]
        self.asked = 0

    def change(self, *, share: float = 0.1) -> None:
        """Every weight as it was at first, and a random share of its tensor's spread."""
        torch.manual_seed(self.asked)
        with torch.no_grad():
            for parameter, first in zip(self.model.parameters(), self.first, strict=True):
                parameter.copy_(first + share * first.std() * torch.randn_like(first))

    def publish(self) -> None:
        self.engine.adopt(self.store.put("policy", self.model.state_dict()))

    def requests(self, count: int, *, new: int = 12, sampling: Sampling | None = None) -> list[GenerateRequest]:
        """Prompts of random ids, some of them longer than a block of the cache."""
        self.asked += 1
        rng = np.random.default_rng(self.asked)
        return [
            GenerateRequest(
                request_id=f"{self.asked}.{index}",
                sequence_id=RolloutId(GroupId(self.asked, 0), index),
                token_ids=rng.integers(0, self.vocabulary, 5 + 11 * index),
                max_new_tokens=new,
                stop_ids=frozenset({0}),
                sampling=sampling or Sampling(temperature=1.5),
                seed=1000 * self.asked + index,
            )
            for index in range(count)
        ]

    def completions(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        return [future.result(SECONDS) for future in [self.engine.submit(each) for each in requests]]


def trained(model: Any, request: GenerateRequest, completion: Completion) -> np.ndarray:
    """The trainer's log-probs of a completion."""
    ids = np.concatenate([request.token_ids, completion.token_ids])
    row = TokenRow(token_ids=ids, mask=np.arange(len(ids)) >= len(request.token_ids))
    temperature = request.sampling.temperature
    return np.asarray(logprobs(model, [row], temperature=temperature, max_tokens=4096)[0])


def largest_gap(model: Any, requests: Sequence[GenerateRequest], completions: Sequence[Completion]) -> float:
    pairs = zip(requests, completions, strict=True)
    return max(float(np.abs(trained(model, each, of) - of.logprobs).max()) for each, of in pairs)


def pids_of(engine: VllmEngine) -> list[int]:
    return [replica._process.pid for replica in engine._replicas.processes.values()]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
