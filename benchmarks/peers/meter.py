"""A trainer's side of an alternating measurement: steps are made when the driver asks for them, and are counted here.

Nothing but the standard library, so that every environment can import it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path


class Meter:
    """Told of every step. After the warm-up it waits for a number of steps on stdin and answers with what they took.

    Waiting costs no CPU time. Without a further number the process ends.
    """

    def __init__(self, *, warmup_steps: int) -> None:
        self._left = warmup_steps
        self._measuring = 0

    def step_done(self) -> None:
        """One more step is done; returns when the next may begin.

        Raises:
            SystemExit: the driver has had enough.
        """
        self._left -= 1
        if self._left:
            return
        if self._measuring:
            self._report()
        else:
            print("@ ready", flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            raise SystemExit(0)
        self._left = self._measuring = int(line)
        self._cpu_seconds, self._started = cpu_seconds(), time.perf_counter()

    def _report(self) -> None:
        steps = self._measuring
        print(
            "@ "
            + json.dumps(
                {
                    "cpu_seconds": (cpu_seconds() - self._cpu_seconds) / steps,
                    "wall_seconds": (time.perf_counter() - self._started) / steps,
                    "peak_mib": peak_mib(),
                }
            ),
            flush=True,
        )


def cpu_seconds() -> float:
    """User and system time of this process and all of its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mib() -> float:
    """The most memory that this process ever held."""
    # Not ru_maxrss: a new process begins with that of the one which started it.
    return _status_mib("VmHWM")


def held_mib() -> float:
    """The memory that this process holds; its peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(field: str) -> float:
    """A line of Linux's status file of this process, which is in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))
