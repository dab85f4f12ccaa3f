"""Seconds of a step on one thread of a CPU, from measured constants: arithmetic, traffic and calls, one after another.

A pass over tokens costs

    seconds = FLOPs / rate + numbers * seconds a number + calls * (fixed + layers * seconds a layer)

FLOPs are those of matrix products and attention. Numbers are what the operations between them read and write, counted
as those that a layer saves for its backward pass (`memory.activation_numbers`), and each logit once. Calls are forward
passes; what one costs before it has anything to do decides on models of some million parameters. A backward pass costs
twice a forward pass's FLOPs and has constants of its own for the rest, and so has a step of the decode loop. Nothing
overlaps on one thread: where a GPU's roofline takes the larger part, this one adds them up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lecritique.config.cluster import Cluster
from lecritique.config.resolve import uses_critic, uses_teacher
from lecritique.config.schema import RunConfig, TrainThenScore
from lecritique.core.errors import ConfigurationError
from lecritique.planning.lengths import Lengths
from lecritique.planning.memory import activation_numbers, longest_row
from lecritique.planning.shapes import ModelShape
from lecritique.planning.work import reads_old_logprobs, told_to_critic, told_to_teacher

# models/shared_prefix.py: scoring reads a prompt once for all siblings from so many tokens on, if that saves a third.
_LEAST_SHARED_TOKENS = 32
_LEAST_SHARED = 1 / 3


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """What a pass costs beside its FLOPs, in seconds: once, for each layer, and for each number of its activations."""

    call: float
    layer: float
    number: float


@dataclass(frozen=True, kw_only=True)
class CpuConstants:
    """One thread of a machine, as `runtime/measuring.py` times it. Seconds of CPU in float32."""

    flops: float
    """FLOP/s of a matrix product."""
    forward: PassCost
    """Without gradients."""
    train: PassCost
    """Forward and backward."""
    decode: PassCost
    """A step of the decode loop."""
    row: float
    """Of a row in a decode step: its draw and its bookkeeping."""
    cached: float
    """Of a cached key or value that a decode step reads."""
    parameter: float
    """Of a parameter in an optimizer step: clipping, AdamW, publication."""
    rollout: float
    """Of a rollout outside the models: environment, records, credit, metrics."""


@dataclass(frozen=True, kw_only=True)
class CpuPlanner:
    """One run in one process with one thread. Lengths are those of `cluster`, or `lengths`: a batch's sampled tokens.

    Raises:
        ConfigurationError: a precision for which there are no constants, or prompts that leave no room for a response.
    """

    config: RunConfig
    shape: ModelShape
    cluster: Cluster
    constants: CpuConstants
    lengths: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.require(self.config, self.cluster)

    @staticmethod
    def require(config: RunConfig, cluster: Cluster) -> None:
        """Raise ConfigurationError where there can be no plan: what is known before a machine is timed."""
        if config.runtime.dtype != "float32":
            raise ConfigurationError(
                f"'runtime.dtype' = '{config.runtime.dtype}': a CPU is measured and planned in float32 only."
            )
        runtime = config.runtime
        for key, got, planned in (
            ("runtime.type", runtime.type, "local"),
            ("runtime.ranks", runtime.ranks, 1),
            ("runtime.engine.type", runtime.engine.type, "embedded"),
            ("runtime.recompute_activations", runtime.recompute_activations, False),
            ("model.adapter.type", config.model.adapter.type, "none"),
            ("critic.backbone.type", config.critic.backbone.type, "copy"),
        ):
            if got != planned:
                raise ConfigurationError(f"'{key}' = {got!r}: a CPU is planned for with {planned!r} only.")
        if cluster.prompt_tokens >= longest_row(config):
            raise ConfigurationError(
                f"'cluster.prompt_tokens' = {cluster.prompt_tokens} leaves nothing of "
                f"'sampling.max_total_tokens' = {longest_row(config)} for a response."
            )

    @property
    def response_tokens(self) -> float:
        """Mean number of tokens that a rollout samples."""
        if self.lengths:
            return sum(self.lengths) / len(self.lengths)
        return float(self.cluster.response_tokens or max(1, self.config.sampling.max_turn_tokens // 2))

    def seconds(self) -> dict[str, float]:
        """CPU seconds of each phase of a step. An asynchronous run does the same work, at other times."""
        batch = self.config.rollout.batch_size
        epochs, minibatch = self.config.policy.epochs, self.config.policy.minibatch_size or batch
        actor = self._train(batch * epochs, self._prompt, output=True, updates=batch / minibatch * epochs)
        phases = {"rollout": self._rollout(actor)}
        if reads_old_logprobs(self.config):
            phases["log_probs"] = self._score(self._prompt, output=True)
        if uses_teacher(self.config):
            phases["teacher"] = self._score(self._prompt + told_to_teacher(self.config), output=True)
        if uses_critic(self.config):
            critic, prompt = self.config.critic, self._prompt + self._context
            schedule = critic.schedule
            twice = isinstance(schedule, TrainThenScore) and schedule.pre_update
            phases["values"] = self._score(prompt, output=False) * (2 if twice else 1)
            if isinstance(schedule, TrainThenScore):
                updates, rows = batch / minibatch, batch
            else:
                updates = critic.updates_per_policy_step
                rows = round(updates * (critic.replay.batch_size or batch))
            phases["critic"] = self._train(rows, prompt, output=False, updates=updates)
        phases["actor"] = actor
        phases["host"] = batch * self.constants.rollout
        return phases

    @property
    def _prompt(self) -> float:
        return self.cluster.prompt_tokens

    @property
    def _context(self) -> float:
        if self.cluster.context_tokens is not None:
            return float(self.cluster.context_tokens)
        return told_to_critic(self.config, response_tokens=self.response_tokens)

    def _rollout(self, policy_seconds: float) -> float:
        """A batch's prompts and decode steps.

        An asynchronous run that waits for its policy has complete groups in store, and plays a batch while the policy
        trains on another: nothing is open when weights change, as in a synchronous run. One that waits for rollouts
        keeps all its rows open, and reads them again under new weights.
        """
        rollout = self.config.rollout
        groups, batch = rollout.batch_size // rollout.group_size, rollout.batch_size
        lengths = self.lengths or self._drawn_lengths(groups)
        rows = min(self.config.runtime.decode_rows, batch)
        prompts = self._forward(groups, self._prompt, output_rows=groups)
        alone = prompts + self._decode_all(decode_steps(lengths, rows))
        # With no staleness allowed it is the synchronous loop.
        asynchronous = self.config.runtime.loop == "asynchronous" and rollout.max_staleness > 0
        if not asynchronous or alone <= policy_seconds:
            return alone
        assert rollout.in_flight is not None
        # While a batch fills up, half of one is complete and waits.
        rows = max(1, min(self.config.runtime.decode_rows, rollout.in_flight - batch // 2))
        again = self._forward(rows, self._prompt + self.response_tokens / 2, output_rows=rows)
        return prompts + again + self._decode_all(_steady(lengths, rows))

    def _decode_all(self, steps: Iterable[tuple[float, int, float]]) -> float:
        return sum(times * self._decode(rows, self._prompt + made) for times, rows, made in steps)

    def _drawn_lengths(self, groups: int) -> tuple[float, ...]:
        lengths = Lengths(
            mean=self.response_tokens,
            spread=self.cluster.spread,
            limit=int(longest_row(self.config) - self._prompt),
            prompt=self.cluster.prompt_tokens,
        )
        drawn = lengths.groups(groups, self.config.rollout.group_size, np.random.default_rng(0))
        return tuple(drawn.ravel().tolist())

    def _decode(self, rows: int, context: float) -> float:
        """One token for each of the rows."""
        constants, shape = self.constants, self.shape
        flops = rows * self._flops(1, cached=context, outputs=1)
        numbers = rows * (activation_numbers(shape) * shape.layers + shape.vocabulary)
        cached = rows * shape.cache_numbers(int(context)) * constants.cached
        return flops / constants.flops + self._rest(constants.decode, numbers, calls=1) + rows * constants.row + cached

    def _score(self, prompt: float, *, output: bool) -> float:
        """A forward pass over the batch; prompts that siblings share once, where that is worth it."""
        rollout, response = self.config.rollout, self.response_tokens
        rows, size = rollout.batch_size, rollout.group_size
        saved = (size - 1) * prompt / (size * (prompt + response))
        outputs = rows * response if output else 0
        if prompt < _LEAST_SHARED_TOKENS or saved < _LEAST_SHARED:
            return self._forward(rows, prompt + response, output_rows=outputs)
        shared = self._forward(rows // size, prompt, output_rows=0)
        return shared + self._forward(rows, response, output_rows=outputs, cached=prompt)

    def _forward(self, rows: float, length: float, *, output_rows: float, cached: float = 0.0) -> float:
        flops = rows * self._flops(length, cached=cached) + output_rows * 2 * self.shape.embedding_parameters
        return flops / self.constants.flops + self._rest(
            self.constants.forward, self._numbers(rows, length, output_rows), calls=self._calls(rows * length)
        )

    def _train(self, rows: float, prompt: float, *, output: bool, updates: float) -> float:
        """Forward, backward and optimizer steps on rows of mean length."""
        length = prompt + self.response_tokens
        outputs = rows * self.response_tokens if output else 0.0
        flops = 3 * (rows * self._flops(length) + outputs * 2 * self.shape.embedding_parameters)
        calls = max(updates, self._calls(rows * length)) if updates else 0.0
        parameters = self.shape.parameters if output else self.shape.backbone_parameters
        return (
            flops / self.constants.flops
            + self._rest(self.constants.train, self._numbers(rows, length, outputs), calls=calls)
            + updates * parameters * self.constants.parameter
        )

    def _flops(self, length: float, *, cached: float = 0.0, outputs: float = 0.0) -> float:
        """A forward pass over new tokens of one row, with logits of so many."""
        shape = self.shape
        attended = shape.attended_in_all_layers(cached + length / 2)
        attention = 4 * shape.heads * shape.head_width * attended
        return length * (2 * shape.trunk_parameters + attention) + outputs * 2 * shape.embedding_parameters

    def _numbers(self, rows: float, length: float, outputs: float) -> float:
        shape = self.shape
        return rows * length * activation_numbers(shape) * shape.layers + outputs * shape.vocabulary

    def _calls(self, tokens: float) -> float:
        return float(math.ceil(tokens / self.config.runtime.micro_batch_tokens))

    def _rest(self, cost: PassCost, numbers: float, *, calls: float) -> float:
        return calls * (cost.call + self.shape.layers * cost.layer) + numbers * cost.number


def decode_steps(lengths: Sequence[float], most_rows: int) -> Iterator[tuple[float, int, float]]:
    """Decode steps of a batch as (how many, rows, mean tokens that they have made); others join where rows end."""
    waiting = list(lengths)[::-1]
    ends: list[float] = []
    began: dict[float, float] = {}
    position, began_sum = 0.0, 0.0
    while waiting or ends:
        while waiting and len(ends) < most_rows:
            end = position + waiting.pop() + len(began) * 1e-9  # apart from each other
            heapq.heappush(ends, end)
            began[end] = position
            began_sum += position
        count = ends[0] - position
        made = position - began_sum / len(ends) + count / 2
        yield count, len(ends), made
        position = ends[0]
        began_sum -= began[heapq.heappop(ends)]


def _steady(lengths: Sequence[float], rows: int) -> Iterator[tuple[float, int, float]]:
    """The same tokens where as many rows are always there."""
    tokens = float(sum(lengths))
    yield tokens / rows, rows, tokens / len(lengths) / 2
