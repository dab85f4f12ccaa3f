"""What runs inside an actor's process: it makes one host at a time and calls its methods. Imports no torch."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lecritique.core.errors import LecritiqueError, RoleFailure


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a method returned, or the error that it raised. Errors travel as data, so that their kind is kept."""

    value: Any = None
    error: Exception | None = None

    def result(self) -> Any:
        """The value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a host lives."""

    pid: int
    machine: str


class Stage:
    """Holds a host.

    Args:
        name: of the seat, for messages.
        log: file that takes what the process prints; None leaves that alone.
        environment: variables that are set before anything is loaded.
    """

    def __init__(self, name: str, log: str | None, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        self._name = name
        self._host: Any = None
        self._number = -1
        if log is not None:
            _print_into(log)

    def make(self, number: int, maker: str, arguments: tuple[Any, ...]) -> Answer:
        """Make a host in place of the one before.

        Args:
            number: its own, which calls must name: what was meant for the host before does not reach it.
            maker: `module:function`, which returns the host.
            arguments: of that function.
        """
        module, function = maker.split(":")

        def made() -> Whereabouts:
            self._host = None
            self._host = getattr(importlib.import_module(module), function)(*arguments)
            self._number = number
            return Whereabouts(pid=os.getpid(), machine=socket.gethostname())

        return self._answer(made)

    def call(self, number: int, method: str, arguments: tuple[Any, ...]) -> Answer:
        """What the host's method returns."""

        def called() -> Any:
            if number != self._number:
                raise RoleFailure(f"{self._name} was made anew, and the call '{method}' was meant for the one before.")
            return getattr(self._host, method)(*arguments)

        return self._answer(called)

    def ping(self) -> None:
        """Nothing: whoever hears the answer knows that this process lives."""

    def _answer(self, do: Any) -> Answer:
        try:
            return Answer(value=do())
        except (LecritiqueError, OSError, KeyError) as error:  # those that the other side knows how to take
            return Answer(error=error)
        except Exception as error:  # the actor's boundary: its trace belongs in its log, a sentence to the run
            traceback.print_exc()
            return Answer(error=RoleFailure(f"{self._name} failed with {type(error).__name__}: {error}"))


def _print_into(log: str) -> None:
    """Everything that this process prints from now on, native code included, goes to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
