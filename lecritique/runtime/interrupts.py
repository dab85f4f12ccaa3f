"""Ctrl-C, SIGTERM and SIGHUP while a run goes on: the first asks it to stop in order, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has the last
_NOTICE = (
    b"lecritique: stopping: the current step is finished and a checkpoint saved; a second Ctrl-C ends it at once.\n"
)


class Interrupts:
    """A context in which the first signal sets `requested` and a second one raises KeyboardInterrupt.

    Handlers can be installed on the main thread only; on another thread nothing is, and `requested` stays False unless
    `request` is called. What was installed before comes back at the end.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the run to stop, as a signal does."""
        self._requested.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a request, so long at most; whether there is one."""
        return self._requested.wait(seconds)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: it was installed from outside Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.request()
        with suppress(OSError):  # the terminal may be gone
            # Not print: a handler may run in the middle of one.
            os.write(2, _NOTICE)
