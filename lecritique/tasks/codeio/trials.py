"""Running programs in the sandbox: drawing inputs, recording outputs and a trace, and the quality filter."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lecritique.core.seeds import derive_seed
from lecritique.tasks.codeio.programs import Program, fault
from lecritique.tasks.json_values import same_value
from lecritique.tasks.sandbox.execution import MEBIBYTE, Limits
from lecritique.tasks.sandbox.pool import SandboxPool, shared_pool
from lecritique.tasks.sandbox.worker import Preparation

_RECORDER = Path(__file__).with_name("recorder.py")
_TRIAL_SECONDS = 2.0
# A program is fit when each of its runs takes less, and its outputs differ for some of this many inputs.
_MOST_RUN_SECONDS = 0.5
_FILTER_SEEDS = 6


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One run of a program: arguments, result (both JSON values) and the values that its variables took."""

    inputs: dict[str, Any]
    output: Any
    trace: str
    seconds: float


def record(program: Program, seed: int, *, hash_seed: int = 0, trace: bool = True) -> Recording | str:
    """Draw inputs with `seed`, run the program on them, twice; in words why not where it is unfit to ask about.

    Both values must survive JSON unchanged and be finite, and the second run must return what the first did.
    """
    arguments = {"code": program.code, "generator": program.generator, "seed": seed % 2**32, "trace": trace}
    done = _recording_pool(hash_seed).call("", "record", arguments, wall_seconds=4 * _TRIAL_SECONDS)
    if done.kind != "output":
        return f"{done.kind}: {done.error}"
    found = done.value
    if not isinstance(found, dict) or not isinstance(found.get("inputs"), dict):
        return str(found.get("fault", "no recording") if isinstance(found, dict) else "no recording")
    return Recording(
        inputs=found["inputs"], output=found["output"], trace=found["trace"], seconds=found["seconds"]
    )  # fmt: skip


def unfit(program: Program) -> str:
    """The quality filter: empty where `program` passes, else why it does not.

    Static: `fault`. Run on six inputs in each of two processes with different hash seeds: the same JSON-stable values,
    every run under half a second, and more than one output (a constant is no question).
    """
    if found := fault(program):
        return found
    outputs = []
    for number in range(_FILTER_SEEDS):
        seed = derive_seed(0, "tasks.codeio.filter", row=number)
        first, second = (record(program, seed, hash_seed=process, trace=False) for process in (0, 1))
        if isinstance(first, str) or isinstance(second, str):
            return first if isinstance(first, str) else str(second)
        if not (same_value(first.inputs, second.inputs) and same_value(first.output, second.output)):
            return "its values depend on the process"
        if max(first.seconds, second.seconds) > _MOST_RUN_SECONDS:
            return f"a run takes more than {_MOST_RUN_SECONDS} seconds"
        outputs.append(first.output)
    if all(same_value(output, outputs[0]) for output in outputs):
        return "it always returns the same"
    return ""


def returns(
    code: str, inputs: dict[str, Any], expected: Any, *, seconds: float, tolerance: float, most_characters: int
) -> bool:
    """Whether the program returns `expected` for `inputs`; run in a fresh sandbox, which never sees `expected`.

    A program that raises, exits, hangs or is killed on these inputs does not, nor for inputs that are longer than
    `most_characters` as JSON.
    """
    if len(json.dumps(inputs)) > most_characters:
        return False
    # The recorder gives programs this name too.
    source = f"{code}\n\nfrom random import Random\n"
    done = _fresh_pool().call(source, "main_solution", inputs, wall_seconds=seconds)
    return done.kind == "output" and same_value(done.value, expected, tolerance=tolerance)


def require_sandbox() -> None:
    """Raise SandboxUnavailable where there is none."""
    _fresh_pool()


def _fresh_pool() -> SandboxPool:
    limits = Limits(cpu_seconds=10, file_bytes=0, memory_bytes=512 * MEBIBYTE)
    return shared_pool(limits, Preparation(packages=_numpy_folder()))


def _recording_pool(hash_seed: int) -> SandboxPool:
    limits = Limits(cpu_seconds=10, file_bytes=0, memory_bytes=1024 * MEBIBYTE)
    preparation = Preparation(
        prelude=_RECORDER.read_text(encoding="utf-8"), packages=_numpy_folder(), reuse=True, hash_seed=hash_seed
    )
    return shared_pool(limits, preparation, warm=1)


@cache
def _numpy_folder() -> tuple[str, ...]:
    """The folder of installed packages, in which numpy lies."""
    found = importlib.util.find_spec("numpy")
    assert found is not None and found.origin is not None  # a required dependency
    return (str(Path(found.origin).parent.parent),)
