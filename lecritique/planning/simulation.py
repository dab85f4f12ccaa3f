"""An asynchronous run, simulated: the rules of `runtime/asynchronous.py` with durations instead of work.

At most `rollout.in_flight` rollouts are open. A member is scored when it ends, siblings with their group. The policy
takes the oldest complete groups, waits for scores and never for the critic, and publishes; what has become older than
`rollout.max_staleness` is cancelled. The critic trains after each batch, on its own GPUs or, colocated, in turns with
the evaluator. With `rollout.max_staleness` = 0 groups are asked for when policy and critic are done with a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import simpy

from lecritique.planning.generation import GeneratingGpu, SimulatedRollout
from lecritique.planning.lengths import Lengths
from lecritique.planning.roofline import Roofline
from lecritique.planning.work import Work
from lecritique.planning.worker import Worker

_GROUPS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class AsynchronousSettings:
    """What the rules read. Sizes are in groups; `score_with_group` for siblings; `colocated` evaluator and trainer."""

    group_size: int
    groups_per_step: int
    groups_in_flight: int
    max_staleness: int
    has_critic: bool
    colocated: bool = False
    score_with_group: bool = False
    updates_per_step: float = 1.0
    update_rollouts: int = 1
    cancel_stale: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Means over the steps that count. Seconds, tokens/s, policy versions; idle shares of each role's time, 0 to 1."""

    step_seconds: float
    tokens_per_second: float
    staleness: float
    oldest: int
    stale_groups: float
    rows_per_gpu: float
    idle: dict[str, float]


@dataclass(eq=False)
class _Group:
    rollouts: list[SimulatedRollout]
    left: int
    unscored: int = 0
    ended: list[SimulatedRollout] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """The oldest version that sampled a token of it."""
        return min(rollout.version for rollout in self.rollouts)


class AsynchronousRun:
    """One simulated run.

    Args:
        settings: the rules' sizes.
        work: how long each piece takes.
        roofline: for decoding.
        lengths: of rollouts.
        gpus: that generate.
        most_rows: of one of them.
        seed: of the lengths.
    """

    def __init__(
        self,
        settings: AsynchronousSettings,
        work: Work,
        roofline: Roofline,
        lengths: Lengths,
        *,
        gpus: int,
        most_rows: int,
        seed: int = 0,
    ) -> None:
        self._settings = settings
        self._work = work
        self._lengths = lengths
        self._environment = simpy.Environment()
        self._rng = np.random.default_rng(seed)
        self._drawn: list[np.ndarray] = []
        self._gpus = [
            GeneratingGpu(
                self._environment,
                roofline,
                prompt_tokens=lengths.prompt,
                most_rows=most_rows,
                on_end=self._rollout_ended,
            )
            for _ in range(gpus)
        ]
        self._policy = Worker(self._environment)
        self._value_trainer = Worker(self._environment)
        self._evaluator = self._value_trainer if settings.colocated else Worker(self._environment)
        self._groups: dict[int, _Group] = {}
        self._ready: list[int] = []
        self._training: list[int] = []
        self._issued = 0
        self._version = 0
        self._owed = 0.0
        self._stale = 0
        self._steps: list[tuple[float, float, float, int]] = []  # time, tokens, mean staleness, largest

    def run(self, steps: int, *, skip: int) -> Outcome:
        """So many steps, of which the first `skip` do not count."""
        self._ask_for_groups()
        self._advance_to(skip)
        counted_from = self._snapshot()
        self._advance_to(steps)
        return self._outcome(counted_from, skip)

    def _advance_to(self, steps: int) -> None:
        while len(self._steps) < steps:
            try:
                self._environment.step()
            except simpy.core.EmptySchedule as error:
                raise RuntimeError(f"the simulated run came to a halt after {len(self._steps)} steps") from error

    # What the orchestrator does.

    def _ask_for_groups(self) -> None:
        if not self._settings.max_staleness and (self._training or not self._value_trainer.idle):
            return
        open_now = len(self._groups) - len(self._training)
        for _ in range(self._settings.groups_in_flight - open_now):
            number, self._issued = self._issued, self._issued + 1
            rollouts = [SimulatedRollout(number, float(tokens)) for tokens in self._next_lengths()]
            self._groups[number] = _Group(rollouts, len(rollouts), unscored=len(rollouts))
            # A group stays together, so that its prompt is read once; one of K > rows is parted by waiting.
            min(self._gpus, key=lambda gpu: gpu.load).play(rollouts)

    def _next_lengths(self) -> np.ndarray:
        if not self._drawn:
            self._drawn = list(self._lengths.groups(_GROUPS_AT_ONCE, self._settings.group_size, self._rng))
        return self._drawn.pop()

    def _rollout_ended(self, rollout: SimulatedRollout) -> None:
        group = self._groups.get(rollout.group)
        if group is None:
            return
        group.left -= 1
        group.ended.append(rollout)
        settings = self._settings
        if not settings.has_critic:
            if not group.left:
                self._make_ready(rollout.group)
        elif not settings.score_with_group:
            self._score(rollout.group, [rollout])
        elif not group.left:
            self._score(rollout.group, group.rollouts)

    def _score(self, number: int, members: list[SimulatedRollout]) -> None:
        seconds = self._work.score_value_seconds([member.tokens for member in members])
        self._evaluator.work(seconds, lambda: self._scored(number, len(members)))

    def _scored(self, number: int, count: int) -> None:
        group = self._groups.get(number)
        if group is None:  # cancelled meanwhile
            return
        group.unscored -= count
        if not group.unscored:
            self._make_ready(number)

    def _make_ready(self, number: int) -> None:
        self._ready.append(number)
        self._begin_batch()

    def _begin_batch(self) -> None:
        if self._training:
            return
        settings = self._settings
        stale = [number for number in self._ready if self._is_stale(number)]
        fresh = [number for number in self._ready if number not in set(stale)]
        if len(fresh) < settings.groups_per_step:
            return
        self._training = fresh[: settings.groups_per_step]
        taken = {*self._training, *stale}
        self._ready = [number for number in self._ready if number not in taken]
        self._end(stale)
        members = [rollout for number in self._training for rollout in self._groups[number].rollouts]
        ages = [self._version - rollout.version for rollout in members]
        tokens = sum(rollout.tokens for rollout in members)
        seconds = self._work.policy_seconds([rollout.tokens for rollout in members])
        self._policy.work(seconds, lambda: self._policy_stepped(tokens, float(np.mean(ages)), max(ages)))
        self._train_critic([rollout.tokens for rollout in members])
        self._ask_for_groups()

    def _train_critic(self, tokens: list[float]) -> None:
        settings = self._settings
        if not settings.has_critic:
            return
        self._owed += settings.updates_per_step
        mean = float(np.mean(tokens))
        while self._owed >= 1:
            self._owed -= 1
            seconds = self._work.train_value_seconds([mean] * settings.update_rollouts)
            self._value_trainer.work(seconds, self._ask_for_groups)

    def _policy_stepped(self, tokens: float, staleness: float, oldest: int) -> None:
        done, self._training = self._training, []
        self._end(done, stale=False)
        self._version += 1
        self._steps.append((self._environment.now, tokens, staleness, oldest))
        for gpu in self._gpus:
            gpu.adopt(self._version, self._work.publish_seconds)
        if self._settings.cancel_stale:
            self._cancel(self._version - self._settings.max_staleness)
        self._ask_for_groups()
        self._begin_batch()

    def _cancel(self, oldest_useful: int) -> None:
        """End the groups that still generate and hold a token from before `oldest_useful`."""
        too_old = {
            number
            for number, group in self._groups.items()
            if group.left and any(0 <= rollout.version < oldest_useful for rollout in group.rollouts)
        }
        if not too_old:
            return
        for gpu in self._gpus:
            gpu.forget(too_old)
            gpu.cancel(lambda rollout: rollout.group in too_old)
        self._end(sorted(too_old))

    def _is_stale(self, number: int) -> bool:
        return self._version - self._groups[number].oldest > self._settings.max_staleness

    def _end(self, numbers: list[int], *, stale: bool = True) -> None:
        self._stale += len(numbers) if stale else 0
        for number in numbers:
            del self._groups[number]

    # What is told of it.

    def _snapshot(self) -> tuple[float, dict[str, float], float, int]:
        generating = sum(gpu.busy_seconds for gpu in self._gpus) / len(self._gpus)
        busy = {"inference": generating, "policy trainer": self._policy.busy_seconds}
        if self._settings.has_critic:
            busy["value trainer"] = self._value_trainer.busy_seconds
            if not self._settings.colocated:
                busy["evaluator"] = self._evaluator.busy_seconds
        rows = sum(gpu.tokens for gpu in self._gpus)
        return self._environment.now, busy, rows, self._stale

    def _outcome(self, since: tuple[float, dict[str, float], float, int], skip: int) -> Outcome:
        until = self._snapshot()
        seconds = until[0] - since[0]
        counted = self._steps[skip:]
        # Work that has begun counts in full, so a share may be a little over 1.
        idle = {role: max(0.0, 1 - (until[1][role] - since[1][role]) / seconds) for role in until[1]}
        return Outcome(
            step_seconds=seconds / len(counted),
            tokens_per_second=sum(tokens for _, tokens, _, _ in counted) / seconds,
            staleness=float(np.mean([staleness for _, _, staleness, _ in counted])),
            oldest=max(oldest for *_, oldest in counted),
            stale_groups=(until[3] - since[3]) / len(counted),
            rows_per_gpu=self._settings.groups_in_flight * self._settings.group_size / len(self._gpus),
            idle=idle,
        )


def rollout_seconds(
    roofline: Roofline, lengths: Lengths, *, groups: int, group_size: int, gpus: int, most_rows: int, seed: int = 0
) -> tuple[float, float]:
    """One batch alone, as a synchronous run plays it.

    Returns:
        (seconds until the last rollout has ended, mean share of that time in which a GPU had none left).
    """
    environment, rng = simpy.Environment(), np.random.default_rng(seed)
    ended_at = [0.0]
    engines = [
        GeneratingGpu(
            environment,
            roofline,
            prompt_tokens=lengths.prompt,
            most_rows=most_rows,
            on_end=lambda _: ended_at.append(environment.now),
        )
        for _ in range(gpus)
    ]
    for number, tokens in enumerate(lengths.groups(groups, group_size, rng)):
        engines[number % gpus].play([SimulatedRollout(number, float(count)) for count in tokens])
    environment.run()
    return ended_at[-1], 1 - sum(engine.busy_seconds for engine in engines) / (gpus * ended_at[-1])
