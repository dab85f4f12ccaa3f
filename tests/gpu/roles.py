"""Each role of a step alone on the device: its seconds, and its memory beside the planner's estimate.

One after the other, so that a peak belongs to one role. What generation sampled is scored and trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lecritique.config.schema import RunConfig
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, Sampling
from lecritique.core.spending import Reading
from lecritique.core.trajectory import (
    CreditedTrajectory,
    PolicyBatch,
    Trajectory,
    ValueBatch,
    ValueRequest,
    ValueSample,
)
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.size import policy_size, value_size
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore
from lecritique.planning.memory import role_memory
from lecritique.policy.trainer import PolicyTrainer
from lecritique.rollout.engine import Engine
from lecritique.runtime.engines import embedded_engine
from tests.gpu.device_clock import peak_memory, timed
from tests.gpu.workloads import GROUP, Workload

_SERIAL = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One role's turn on the whole batch. `flops` is the arithmetic it took, `tokens` what it sampled or read.

    Both are 0 where weights are only handed on.
    """

    role: str
    seconds: float
    tokens: int
    flops: int
    peak_bytes: int | None
    estimated_bytes: int

    def record(self, matmul_flops: float) -> dict[str, Any]:
        """For the table and the file."""
        return {
            "role": self.role,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds if self.tokens else None,
            "share_of_matmul_peak": self.flops / self.seconds / matmul_flops if self.flops else None,
            "peak_bytes": self.peak_bytes,
            "estimated_bytes": self.estimated_bytes,
        }


class Roles:
    """The roles of a workload on a device.

    Args:
        work: what they do.
        device: where.
    """

    def __init__(self, work: Workload, device: str) -> None:
        self._work = work
        self._device = device
        self.config: RunConfig = work.config(device)
        self._estimates = {each.role: each.total for each in role_memory(self.config, work.shape)}
        rng = np.random.default_rng(0)
        prompts = rng.integers(1, work.shape.vocabulary, (work.rows // GROUP, work.prompt_tokens))
        self._prompts = [prompts[row // GROUP] for row in range(work.rows)]

    def all(self) -> list[Measured]:
        """Generation, new weights for it, policy step, value scoring, value step."""
        generated, trajectories = self.generation()
        rest = (self.policy_step, self.value_scoring, self.value_step)
        return [generated, self.publishing(), *(measure(trajectories) for measure in rest)]

    def requests(self, new_tokens: int) -> list[GenerateRequest]:
        """One for each row of the batch; none of them ends early."""
        batch = next(_SERIAL)
        return [
            GenerateRequest(
                request_id=f"{batch}.{row}",
                sequence_id=RolloutId(GroupId(row // GROUP, batch), row % GROUP),
                token_ids=prompt,
                max_new_tokens=new_tokens,
                stop_ids=frozenset(),
                sampling=Sampling(),
                seed=1000 * batch + row,
            )
            for row, prompt in enumerate(self._prompts)
        ]

    def generation(self) -> tuple[Measured, list[Trajectory]]:
        """The embedded engine, with its own copy of the weights."""
        model = self._work.model(self._device)
        with peak_memory(self._device) as peak:
            engine = embedded_engine(model, MemoryWeightStore(), self.config)
            completed(engine, self.requests(2))
            requests = self.requests(self._work.new_tokens)
            seconds, completions = timed(self._device, lambda: completed(engine, requests))
            engine.close()
        trajectories = [trajectory(*pair) for pair in zip(requests, completions, strict=True)]
        reading, size = read(trajectories), policy_size(model)
        measured = Measured(
            role="engine",
            seconds=seconds,
            tokens=sum(each.action_tokens for each in trajectories),
            flops=size.forward(reading.tokens, reading.pairs),
            peak_bytes=peak.bytes,
            estimated_bytes=self._estimates["engine"],
        )
        return measured, trajectories

    def publishing(self) -> Measured:
        """A version of the policy put into the store and taken over by the engine."""
        model, store = self._work.model(self._device), MemoryWeightStore()
        engine = embedded_engine(model, store, self.config)
        with peak_memory(self._device) as peak:

            def publish() -> None:
                engine.adopt(store.put("policy", model.state_dict()))
                engine.advance()

            publish()
            seconds, _ = timed(self._device, publish)
        engine.close()
        return Measured(
            role="publishing",
            seconds=seconds,
            tokens=0,
            flops=0,
            peak_bytes=peak.bytes,
            # One version is held until the next is whole.
            estimated_bytes=2 * sum(tensor.nbytes for tensor in model.state_dict().values()),
        )

    def policy_step(self, trajectories: Sequence[Trajectory]) -> Measured:
        """One optimizer step on the whole batch, after one that allocates."""
        batch = policy_batch(trajectories)
        with peak_memory(self._device) as peak:
            model = self._work.model(self._device)
            trainer = PolicyTrainer(
                model,
                self.config.policy,
                MemoryWeightStore(),
                temperature=self.config.sampling.temperature,
                max_tokens=self._work.micro_batch_tokens,
            )
            seconds = self._second_time(lambda: trainer.step(batch))
        return self._training("policy trainer", seconds, trajectories, policy_size(model), peak.bytes)

    def value_scoring(self, trajectories: Sequence[Trajectory]) -> Measured:
        """By the evaluator's own copy of the critic."""
        policy = self._work.model(self._device)
        requests = [ValueRequest(trajectory=each) for each in trajectories]
        with peak_memory(self._device) as peak:
            critic = self._critic_of(policy)
            evaluator = ValueEvaluator(
                critic,
                MemoryWeightStore(),
                max_tokens=self._work.micro_batch_tokens,
                context_length=self._work.length,
            )
            seconds = self._second_time(lambda: evaluator.score(requests))
        reading = read(trajectories)
        return Measured(
            role="evaluator",
            seconds=seconds,
            tokens=reading.tokens,
            flops=value_size(critic).forward(reading.tokens, reading.pairs),
            peak_bytes=peak.bytes,
            estimated_bytes=self._estimates["evaluator"],
        )

    def value_step(self, trajectories: Sequence[Trajectory]) -> Measured:
        """One update of the critic on the whole batch."""
        policy, batch = self._work.model(self._device), value_batch(trajectories)
        with peak_memory(self._device) as peak:
            critic = self._critic_of(policy)
            trainer = ValueTrainer(
                critic,
                self.config.critic.optimizer,
                MemoryWeightStore(),
                max_tokens=self._work.micro_batch_tokens,
            )
            seconds = self._second_time(lambda: trainer.update(batch))
        return self._training("value trainer", seconds, trajectories, value_size(critic), peak.bytes)

    def _critic_of(self, policy: Any) -> ValueModel:
        return ValueModel.from_policy(policy, self.config.critic.loss, seed=0)

    def _second_time(self, work: Callable[[], object]) -> float:
        work()
        return timed(self._device, work)[0]

    def _training(
        self, role: str, seconds: float, trajectories: Sequence[Trajectory], size: Any, peak_bytes: int | None
    ) -> Measured:
        reading = read(trajectories)
        return Measured(
            role=role,
            seconds=seconds,
            tokens=reading.tokens,
            flops=size.training(reading.tokens, reading.pairs),
            peak_bytes=peak_bytes,
            estimated_bytes=self._estimates[role],
        )


def completed(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Completions of requests that are submitted at once."""
    futures = [engine.submit(each) for each in requests]
    while engine.advance():
        pass
    return [future.result() for future in futures]


def read(trajectories: Sequence[Trajectory]) -> Reading:
    """Tokens, and pairs of tokens that attend to each other, of reading each once."""
    reading = Reading()
    reading.add(len(each) for each in trajectories)
    return reading


def trajectory(request: GenerateRequest, completion: Completion) -> Trajectory:
    """Prompt and response in one turn, with a return of 0 or 1."""
    given, sampled = len(request.token_ids), len(completion.token_ids)
    return Trajectory(
        rollout_id=request.sequence_id,
        token_ids=np.concatenate([request.token_ids, completion.token_ids]),
        action_mask=np.arange(given + sampled) >= given,
        sampler_logprobs=np.concatenate([np.zeros(given), completion.logprobs]),
        turn_index=np.zeros(given + sampled, dtype=np.int64),
        policy_version=np.concatenate([np.full(given, -1), completion.policy_version]),
        episode_return=float(request.sequence_id.member % 2),
        truncated=True,
    )


def policy_batch(trajectories: Sequence[Trajectory]) -> PolicyBatch:
    """Advantages of the group mean over rewards 0 and 1."""
    members = tuple(
        CreditedTrajectory(
            trajectory=each,
            advantages=np.where(each.action_mask, each.episode_return - 0.5, 0.0),
            value_targets=np.where(each.action_mask, each.episode_return, 0.0),
            estimator="mean",
        )
        for each in trajectories
    )
    return PolicyBatch.of(members, trained_version=0)


def value_batch(trajectories: Sequence[Trajectory]) -> ValueBatch:
    """Monte Carlo targets."""
    return ValueBatch.of(
        tuple(
            ValueSample(
                rollout_id=each.rollout_id,
                trajectories=(each,),
                contexts=(None,),
                value_targets=(np.where(each.action_mask, each.episode_return, 0.0),),
                value_version=0,
            )
            for each in trajectories
        )
    )
