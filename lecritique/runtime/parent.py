"""A run that a comparison started ends with it, however that ended: a killed process cannot end its children itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

# Names the process that must live, for the run that it starts.
VARIABLE = "LECRITIQUE_PARENT"
_LOOK_SECONDS = 0.5


def named_parent() -> Mapping[str, str]:
    """What a child's environment says so that it ends with this process; nothing where processes know no parent."""
    return {VARIABLE: str(os.getpid())} if os.name == "posix" else {}


def end_with_parent() -> None:
    """If the environment names a parent, ask this process to stop (SIGTERM) as soon as that is no longer its parent.

    Asked to stop, a run finishes its step and saves a checkpoint, from which the same comparison goes on. The variable
    is taken out of the environment: what this process starts is none of the comparison's runs.
    """
    named = os.environ.pop(VARIABLE, "")
    if named.isdecimal() and os.name == "posix":
        threading.Thread(target=_watch, args=(int(named),), name="parent watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
