"""A scripted environment and an engine that answers from a script, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GenerateRequest, GroupRequest, Sampling
from lecritique.core.task import Message, Reply, Task
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_tokenizer

Answer = Callable[[str], Reply]


def renderer() -> ChatRenderer:
    """Of the bundled tokenizer; its weights are not read."""
    return ChatRenderer(load_tokenizer("tiny"))


def user(text: str) -> Message:
    return Message(role="user", content=text)


class Scripted:
    """An environment whose episodes answer from a list, one entry a turn: a Reply, a function, or an exception."""

    name = "scripted"
    reward_range = (-0.5, 1.0)

    def __init__(self, *replies: object, start_error: Exception | None = None) -> None:
        self.replies = replies
        self.start_error = start_error
        self.heard: list[str] = []

    def __len__(self) -> int:
        return 100

    def task(self, row: int) -> Task:
        return Task(task_id=f"row-{row}", messages=(user("2+2?"),))

    def start(self, task: Task):
        if self.start_error is not None:
            raise self.start_error
        return _Episode(self)

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        return "4"


class _Episode:
    def __init__(self, environment: Scripted) -> None:
        self._environment = environment
        self._left = list(environment.replies)

    def reply(self, text: str) -> Reply:
        self._environment.heard.append(text)
        step = self._left.pop(0)
        if isinstance(step, Exception):
            raise step
        return step(text) if callable(step) else step


def group_request(
    *, row: int = 0, attempt: int = 0, size: int = 1, turn_tokens: int = 10, total: int = 200, seed: int = 0
) -> GroupRequest:
    return GroupRequest(
        group_id=GroupId(row, attempt),
        task=Scripted().task(row),
        group_size=size,
        sampling=Sampling(),
        max_turn_tokens=turn_tokens,
        max_total_tokens=total,
        seed=seed,
    )


def completion(of: GenerateRequest, ids: Sequence[int], finish: str, *, version: int = 0) -> Completion:
    """A completion with the given ids; log-probs -0.5, -1, -1.5, ..."""
    return Completion(
        request_id=of.request_id,
        token_ids=np.array(ids),
        logprobs=-0.5 * np.arange(1, len(ids) + 1),
        policy_version=np.full(len(ids), version),
        finish_reason=finish,
    )


class FakeEngine:
    """Completes what it holds in an order of its own: `pick(n)` is the index of the next of n waiting requests."""

    def __init__(
        self,
        write: Callable[[GenerateRequest], Completion],
        *,
        pick: Callable[[int], int] = lambda waiting: 0,
        fails: Callable[[GenerateRequest], bool] = lambda request: False,
    ) -> None:
        self._write, self._pick, self._fails = write, pick, fails
        self._held: list[tuple[GenerateRequest, Future[Completion]]] = []
        self.asked: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        self._held.append((request, future))
        self.asked.append(request)
        return future

    def advance(self) -> bool:
        if self._held:
            request, future = self._held.pop(self._pick(len(self._held)))
            if self._fails(request):
                future.set_exception(EngineFailure(f"lost {request.request_id}"))
            else:
                future.set_result(self._write(request))
        return bool(self._held)

    def cancel(self, request_id: str) -> None: ...

    def oldest_version(self, request_id: str) -> int | None:
        return None

    def adopt(self, manifest: object) -> None: ...

    def close(self) -> None: ...
