"""What the roles of a run have in common: a thread, an inbox, a health, and one way to fail."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeVar

from lecritique.runtime.timeline import Timeline

Answer = TypeVar("Answer")

# How often an asker looks whether the role still lives, and how long a stop waits for the work in hand.
_LOOK_UP_SECONDS = 0.2
_STOP_SECONDS = 30.0

Health = Literal["new", "running", "stopped", "failed"]


class Role(Protocol):
    """A part of a run with a life of its own. Roles know nothing of how they are placed."""

    name: str

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self, *, wait: bool = True) -> None:
        """End soon; `wait` returns once it has ended. May be called more than once."""
        ...

    @property
    def health(self) -> Health:
        """Where it stands."""
        ...

    def state(self) -> dict[str, Any]:
        """Health and figures for a person who looks for what went wrong, ready for JSON."""
        ...


class ThreadRole(ABC):
    """A role on its own thread: takes commands from its inbox, and works on its own account in between.

    The first exception ends the thread and is reported once.

    Args:
        name: in messages and in the timeline.
        on_failure: takes (role name, exception), on the role's thread.
        timeline: where spans of work go.
    """

    def __init__(self, name: str, *, on_failure: Callable[[str, Exception], None], timeline: Timeline) -> None:
        self.name = name
        self.timeline = timeline
        self._on_failure = on_failure
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._live, name=f"lecritique {name}", daemon=True)
        self._started = False

    def start(self) -> None:
        """Begin."""
        self._started = True
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """End after the piece of work in hand."""
        self._stopping.set()
        self._inbox.put(None)
        if wait and self._started and threading.current_thread() is not self._thread:
            # User code may hang in there; the thread dies with the process then.
            self._thread.join(_STOP_SECONDS)

    @property
    def health(self) -> Health:
        """Where it stands."""
        if self._failed:
            return "failed"
        if not self._started:
            return "new"
        return "running" if self._thread.is_alive() else "stopped"

    def tell(self, command: Callable[..., None], *arguments: Any) -> None:
        """Have `command` called with `arguments` on the role's thread, in order."""
        self._inbox.put(lambda: command(*arguments))

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What `question` gives when it is called on the role's thread, between two pieces of its work; waits for it.

        Called directly once the role has ended.
        """
        if self.health != "running":
            return question()
        answer: Future[Answer] = Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # the asker's to handle
                answer.set_exception(error)

        self.tell(reply)
        while True:
            try:
                return answer.result(timeout=_LOOK_UP_SECONDS)
            except TimeoutError:
                if self.health != "running" and not answer.done():
                    return question()

    def state(self) -> dict[str, Any]:
        """Health and figures, read while it works."""
        return {"health": self.health, "waiting_commands": self._inbox.qsize(), **self._figures()}

    def _figures(self) -> dict[str, Any]:
        """What a role adds to its state."""
        return {}

    @abstractmethod
    def _work(self) -> bool:
        """Do one bounded piece of work; False when there is nothing to do until the next command."""

    def _close(self) -> None:  # noqa: B027, most roles hold nothing
        """Let go of what the role holds, on its own thread."""

    def _live(self) -> None:
        try:
            busy = True
            while not self._stopping.is_set():
                self._take(wait=not busy)
                busy = not self._stopping.is_set() and self._work()
        except Exception as error:  # the supervisor's boundary: whatever a role raises ends the run in order
            self._on_failure(self.name, error)
            self._failed = True  # whoever sees it failed finds the report
        finally:
            self._close()

    def _take(self, *, wait: bool) -> None:
        """Carry out every command that has arrived; `wait` for one first."""
        while True:
            try:
                command = self._inbox.get(block=wait)
            except Empty:
                return
            if command is None or self._stopping.is_set():
                return
            command()
            wait = False
