"""The environment: a taskset's prompts, turns and rewards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from lecritique.core.errors import DataError, EnvironmentFailure, LecritiqueError
from lecritique.core.task import Message, Reference, Reply, Task
from lecritique.tasks.protocol import Episode
from lecritique.tasks.verifiers.library import loaded_env, tasks_of
from lecritique.tasks.verifiers.options import VerifiersOptions
from lecritique.tasks.verifiers.play import Asked, Ended, Play, opening_of


class VerifiersEnvironment:
    """A taskset's prompts, turns and rewards; its `value_function_prompt` is what only a critic sees (`env`)."""

    Options = VerifiersOptions
    name = "verifiers"

    def __init__(self, options: VerifiersOptions) -> None:
        self.options = options.resolved(0)
        self.reward_range = (options.reward_low, options.reward_high)
        self._env = loaded_env(self.options)
        self._tasks = tasks_of(self._env.taskset, self.options)
        self._loop = _Loop()

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, row: int) -> Task:
        """The prompt of one row; `value_function_prompt` becomes the task's `env`."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of task 'verifiers' does not exist, expected 0 to {len(self) - 1}")
        theirs = self._tasks[row]
        answer = getattr(theirs.data, self.options.answer_field, None)
        return Task(
            task_id=f"verifiers:{self.options.taskset}:{theirs.key[:32]}",
            messages=opening_of(theirs, row),
            reference=Reference(answer=str(answer)) if answer is not None and str(answer).strip() else None,
            env=_value_function_prompt(theirs, row),
            metadata={"row": row, "taskset": self.options.taskset},
        )

    def start(self, task: Task) -> Episode:
        """Open an episode and play it up to the policy's first turn."""
        play = Play(self._env, self._tasks[task.metadata["row"]], self.options)
        episode = _VerifiersEpisode(play, self._loop, self.options.limit_seconds)
        opening = episode.first()
        if opening != task.messages:
            raise EnvironmentFailure(f"taskset {self.options.taskset!r} opens with other messages than its prompt")
        return episode

    def gold(self, task: Task, messages: Sequence[Message]) -> str:
        """The reference answer, which a taskset may want in some form of its own.

        Raises:
            DataError: the task has none.
        """
        if task.reference is None:
            raise DataError(f"task {task.task_id} has no field {self.options.answer_field!r} (task.answer_field)")
        return task.reference.answer


def _value_function_prompt(task: Any, row: int) -> str | None:
    """What the task tells a value function: an attribute or method of the task, or a field of its data."""
    prompt = getattr(task, "value_function_prompt", None)
    if prompt is None:
        prompt = getattr(task.data, "value_function_prompt", None)
    if callable(prompt):
        prompt = prompt()
    if prompt is not None and not isinstance(prompt, str):
        raise DataError(
            f"row {row} of task 'verifiers': value_function_prompt is a {type(prompt).__name__}, expected text"
        )
    return prompt if prompt and prompt.strip() else None


class _VerifiersEpisode:
    """Our side of a play: waits for its events from whatever thread asks."""

    def __init__(self, play: Play, loop: _Loop, limit_seconds: float) -> None:
        self._play, self._loop, self._limit_seconds = play, loop, limit_seconds
        self._cancel = loop.submit(play.run)
        # An episode may be left in the middle, after a turn that was cut by the token limit.
        weakref.finalize(self, self._cancel)

    def first(self) -> tuple[Message, ...]:
        """The messages that the policy is to answer first."""
        event = self._event()
        if isinstance(event, Ended):
            raise EnvironmentFailure("the taskset ended an episode before the policy's first turn")
        return event.messages

    def reply(self, text: str) -> Reply:
        """Hand the policy's turn over, and say what the environment answers."""
        # What is no text to a tokenizer is none to a scorer either.
        clean = text.encode("utf-8", "replace").decode()
        self._loop.call(lambda: self._play.answers.put_nowait(clean))
        event = self._event()
        return Reply(reward=event.reward) if isinstance(event, Ended) else Reply(messages=event.messages)

    def _event(self) -> Asked | Ended:
        try:
            event = self._play.events.get(timeout=self._limit_seconds)
        except queue.Empty:
            self._cancel()
            raise EnvironmentFailure(f"the taskset did not answer within {self._limit_seconds:g} s") from None
        if isinstance(event, LecritiqueError):
            raise event
        return event


class _Loop:
    """An event loop in a thread, started when first needed; a forked copy starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, run: Callable[[], Any]) -> Callable[[], None]:
        """Start a coroutine; what is returned cancels it."""
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(run(), loop)
        return lambda: None if future.done() else _quietly(future.cancel)

    def call(self, do: Callable[[], None]) -> None:
        """Do something in the loop's thread."""
        self._running().call_soon_threadsafe(do)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="verifiers", daemon=True).start()
            return self._loop


def _quietly(do: Callable[[], Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone at the end of the program
        do()
