"""What goes into the sandbox and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["output", "error", "timeout", "killed"]

MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one execution may use.

    Args:
        wall_seconds: from the hand-over of the program to its result.
        cpu_seconds: of the processor.
        memory_bytes: of address space.
        file_bytes: of the writable folder /tmp; 0 leaves no place to write at all.
        output_bytes: of standard output and of standard error, each.
        value_bytes: of the returned value as JSON.
        open_files: file descriptors.

    Raises:
        ValueError: a limit below what a Python process needs.
    """

    wall_seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 * MEBIBYTE
    file_bytes: int = 16 * MEBIBYTE
    output_bytes: int = 64 * 1024
    value_bytes: int = MEBIBYTE
    open_files: int = 64

    def __post_init__(self) -> None:
        lowest = {
            "wall_seconds": 0.05, "cpu_seconds": 1, "memory_bytes": 64 * MEBIBYTE, "file_bytes": 0,
            "output_bytes": 0, "value_bytes": 64, "open_files": 16,
        }  # fmt: skip
        for name, least in lowest.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"sandbox limit {name} = {getattr(self, name)!r}, expected at least {least}")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How one execution ended.

    Args:
        kind: `output`: it returned; `error`: it raised, or exited with a code other than 0; `timeout`: cut at the
            wall or processor limit; `killed`: it ended without a result, or was cut for writing too much.
        value: the returned value after JSON (`call`), or the exit code (`run`); None where there is none. It is
            whatever the program says: a verdict must be reached outside, from values the program did not know.
        error: one line, for `error`, `timeout` and `killed`.
        stdout: text written to standard output, undecodable bytes replaced.
        stderr: the same for standard error.
        seconds: from the hand-over to the result.
    """

    kind: Kind
    value: Any = None
    error: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
