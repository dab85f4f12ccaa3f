"""The group driver: a state machine without I/O that plays K episodes of one task.

Feed it completions, get requests. The synchronous loop, threads and remote engines all pump it the
same way. Failures of an environment, verifier or engine become data: a typed error in the rollout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lecritique.core.errors import BudgetExceeded, EngineFailure, EnvironmentFailure, RolloutError, VerifierFailure
from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Completion, GenerateRequest, GroupRequest, Rollout, Turn
from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Reply
from lecritique.models.chat import ChatRenderer
from lecritique.tasks.protocol import Environment, finite_reward


class GroupDriver:
    """Plays the K rollouts of a GroupRequest.

    `start` gives the first requests, `feed` and `fail` take what came of one and give what follows,
    until `finished`.
    """

    def __init__(self, request: GroupRequest, environment: Environment, renderer: ChatRenderer) -> None:
        self.request = request
        # All members are asked the same.
        prompt_ids = renderer.render_prompt(request.task.messages)
        self._members = [
            _Member(RolloutId(request.group_id, member), request, environment, renderer, prompt_ids)
            for member in range(request.group_size)
        ]

    def start(self) -> list[GenerateRequest]:
        """The first request of each member that could start."""
        return [request for member in self._members for request in member.start()]

    def feed(self, sequence_id: RolloutId, completion: Completion) -> list[GenerateRequest]:
        """Take the completion of a member's request; its next request, if its episode goes on."""
        return self._members[sequence_id.member].feed(completion)

    def fail(self, sequence_id: RolloutId, error: RolloutError) -> None:
        """End a member with an error."""
        self._members[sequence_id.member].error = error

    @property
    def finished(self) -> bool:
        """Whether every member has ended."""
        return all(member.ended for member in self._members)

    def rollout(self, member: int) -> Rollout | None:
        """One member's rollout once it has ended, None before."""
        return self._members[member].rollout() if self._members[member].ended else None

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """All members' rollouts, in order of member."""
        return tuple(member.rollout() for member in self._members)


class _Member:
    """One episode."""

    def __init__(
        self,
        rollout_id: RolloutId,
        request: GroupRequest,
        environment: Environment,
        renderer: ChatRenderer,
        prompt_ids: np.ndarray,
    ) -> None:
        self.rollout_id = rollout_id
        self.request = request
        self.environment = environment
        self.renderer = renderer
        self.prompt_ids = prompt_ids
        self.turns: list[Turn] = []
        self.token_ids = np.zeros(0, dtype=np.int64)
        self.given_ids = self.token_ids
        self.messages: tuple[Message, ...] = request.task.messages
        self.reward: float | None = None
        self.error: RolloutError | None = None
        self.truncated = False

    @property
    def ended(self) -> bool:
        return self.reward is not None or self.error is not None

    def start(self) -> list[GenerateRequest]:
        try:
            self.episode = self.environment.start(self.request.task)
        except RolloutError as error:
            self.error = error
        except Exception as error:
            self.error = EnvironmentFailure(f"{self.environment.name}: {type(error).__name__}: {error}")
        if self.ended:
            return []
        self._give(self.prompt_ids)
        return self._ask()

    def feed(self, completion: Completion) -> list[GenerateRequest]:
        if self.ended:
            return []
        text = self.renderer.decode(completion.token_ids)
        self.turns.append(Turn(given_ids=self.given_ids, completion=completion, text=text, messages=self.messages))
        self.token_ids = np.concatenate([self.token_ids, completion.token_ids])
        self.given_ids = np.zeros(0, dtype=np.int64)
        if completion.finish_reason == "cancelled":
            self.error = EngineFailure("the request was cancelled")
            return []
        reply = self._reply(text)
        if reply is None:
            return []
        if completion.finish_reason == "length":
            # A turn cut by a token limit has no end token, so nothing can follow it.
            self.truncated = True
            self.reward = self._lowest if reply.reward is None else reply.reward
            return []
        if reply.messages:
            self.messages = reply.messages
            self._give(self.renderer.extend(self.token_ids, reply.messages)[len(self.token_ids) :])
        if reply.done:
            self.reward = reply.reward
            return []
        return self._ask()

    def _reply(self, text: str) -> Reply | None:
        """What the environment says, or None with `error` set. The one boundary for foreign exceptions."""
        try:
            reply = self.episode.reply(text)
            if not isinstance(reply, Reply):
                raise TypeError(f"an episode must answer with a Reply, got {type(reply).__name__}")
            return reply if reply.reward is None else replace(reply, reward=self._checked(reply.reward))
        except RolloutError as error:
            self.error = error
        except Exception as error:
            self.error = EnvironmentFailure(f"{self.environment.name}: {type(error).__name__}: {error}")
        return None

    def _checked(self, reward: object) -> float:
        """The reward as a float; VerifierFailure when it is no number of the declared range."""
        low, high = self.environment.reward_range
        value = finite_reward(reward)
        if not low <= value <= high:
            raise VerifierFailure(f"{self.environment.name} gave the reward {value}, expected one in [{low}, {high}]")
        return value

    @property
    def _lowest(self) -> float:
        return self.environment.reward_range[0]

    def _give(self, ids: np.ndarray) -> None:
        self.given_ids = np.concatenate([self.given_ids, ids])
        self.token_ids = np.concatenate([self.token_ids, ids])

    def _ask(self) -> list[GenerateRequest]:
        room = self.request.max_total_tokens - len(self.token_ids)
        if room < 1:
            if self.turns:
                self.truncated, self.reward = True, self._lowest
            else:
                self.error = BudgetExceeded(
                    f"the prompt of task {self.request.task.task_id} has {len(self.token_ids)} tokens, "
                    f"the limit of an episode is {self.request.max_total_tokens}"
                )
            return []
        group = self.rollout_id.group
        return [
            GenerateRequest(
                request_id=f"{self.rollout_id}.{len(self.turns)}",
                sequence_id=self.rollout_id,
                token_ids=self.token_ids,
                max_new_tokens=min(self.request.max_turn_tokens, room),
                stop_ids=self.renderer.stop_ids,
                sampling=self.request.sampling,
                seed=derive_seed(
                    self.request.seed,
                    "sample",
                    row=group.row,
                    attempt=group.attempt,
                    member=self.rollout_id.member,
                    turn=len(self.turns),
                ),
            )
        ]

    def rollout(self) -> Rollout:
        return Rollout(
            rollout_id=self.rollout_id,
            task=self.request.task,
            turns=tuple(self.turns),
            closing_ids=self.given_ids,
            reward=None if self.error else self.reward,
            error=self.error,
            truncated=self.truncated,
        )
