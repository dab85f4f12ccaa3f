"""How many threads torch uses: one for tiny models, where several wait for each other more than they work."""

from __future__ import annotations

import os

import torch

# A 0.8M-parameter model trains 10-20 times slower with two spinning threads than with one.
_TINY_PARAMETERS = 5_000_000


def choose_threads(parameters: int) -> str | None:
    """Set torch's threads unless the user has (OMP_NUM_THREADS); a sentence saying so, or None."""
    if os.environ.get("OMP_NUM_THREADS") or parameters >= _TINY_PARAMETERS:
        return None
    torch.set_num_threads(1)
    return (
        f"One torch thread, which is fastest for a model of {parameters / 1e6:.1f}M parameters "
        "(set OMP_NUM_THREADS to choose)."
    )


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_environment(parameters: int, *, cores: int, jobs: int) -> dict[str, str]:
    """What a run's environment says so that `jobs` of them share the cores; nothing where the user has chosen.

    Tiny models get one thread each, as they would alone.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(1 if parameters < _TINY_PARAMETERS else max(1, cores // jobs))}
