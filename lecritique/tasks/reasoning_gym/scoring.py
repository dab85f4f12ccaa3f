"""The library's scorers, in this process or behind walls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lecritique.core.errors import VerifierFailure
from lecritique.tasks.reasoning_gym.library import generator, package_folder
from lecritique.tasks.reasoning_gym.sets import SANDBOXED
from lecritique.tasks.reasoning_gym.strictness import may_be_scored
from lecritique.tasks.sandbox.execution import MEBIBYTE, Limits
from lecritique.tasks.sandbox.pool import SandboxPool, shared_pool
from lecritique.tasks.sandbox.worker import Preparation

# One worker serves many calls: what the answer could run as code never reaches it (strictness), and the walls are
# for what takes for ever or all memory.
_PRELUDE = """
import reasoning_gym

def score(name, options, answer, entry):
    scorer = reasoning_gym.create_dataset(name, seed=1, size=1, **options)
    return float(scorer.score_answer(answer, entry))
"""
_LIMITS = Limits(memory_bytes=2048 * MEBIBYTE)


class Scorer:
    """The scorer of one data set with its generator's options.

    Raises:
        SandboxUnavailable: it must not run here, and there is no sandbox.
    """

    def __init__(self, name: str, options: Mapping[str, Any], *, seconds: float) -> None:
        self._name = name
        self._options = dict(options)
        self._seconds = seconds
        self._scorer: Any = None
        if name in SANDBOXED:
            _pool()
        else:
            self._scorer = generator(name, options, seed=1, size=1)

    def score(self, answer: str, entry: dict[str, Any]) -> Any:
        """What the library makes of `answer`; 0 where the answer may not be scored or its scoring does not end.

        Raises:
            VerifierFailure: the scorer behind the walls raised.
        """
        # Blank text answers nothing; several scorers raise on it.
        if not answer or not may_be_scored(self._name, answer, entry):
            return 0.0
        if self._scorer is not None:
            return self._scorer.score_answer(answer, entry)
        return self._score_inside(answer, entry)

    def _score_inside(self, answer: str, entry: dict[str, Any]) -> Any:
        arguments = {"name": self._name, "options": self._options, "answer": answer, "entry": entry}
        done = _pool().call("", "score", arguments, wall_seconds=self._seconds)
        if done.kind == "error":
            raise VerifierFailure(f"the scorer of {self._name} raised {done.error[:200]}")
        return done.value if done.kind == "output" else 0.0


def _pool() -> SandboxPool:
    return shared_pool(_LIMITS, Preparation(prelude=_PRELUDE, packages=(package_folder(),), reuse=True), warm=1)
