"""The error hierarchy. Every error that can end a run carries the exit code of its kind."""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_CONFIGURATION = 2
EXIT_DIVERGED = 3
EXIT_ROLE_FAILED = 4
EXIT_INTERRUPTED = 130


class LecritiqueError(Exception):
    """Base of all errors that lecritique raises on purpose; its text is one sentence for a person."""

    exit_code: ClassVar[int] = EXIT_ROLE_FAILED


class ConfigurationError(LecritiqueError):
    """A key, value, recipe, task or model that cannot be run. Names what was got, expected and where."""

    exit_code = EXIT_CONFIGURATION


class DataError(LecritiqueError):
    """A data file or data row that cannot be used."""

    exit_code = EXIT_CONFIGURATION


class RolloutError(LecritiqueError):
    """A rollout that could not be completed. It is recorded as data and excluded from training.

    `kind` is what statistics are counted by.
    """

    kind: ClassVar[str] = "rollout"


class EnvironmentFailure(RolloutError):
    """The environment's own code raised."""

    kind = "environment"


class VerifierFailure(RolloutError):
    """A verifier crashed or returned something that is not a reward: never the same as a wrong answer."""

    kind = "verifier"


class EngineFailure(RolloutError):
    """The engine could not generate."""

    kind = "engine"


class BudgetExceeded(RolloutError):
    """The prompt leaves no room for a single token under the token limit."""

    kind = "budget"


class DivergenceError(LecritiqueError):
    """A loss, gradient, advantage or value became NaN or infinite."""

    exit_code = EXIT_DIVERGED


class CheckpointError(LecritiqueError):
    """A checkpoint that is missing, incomplete or of another contract."""

    exit_code = EXIT_CONFIGURATION


class Interrupted(LecritiqueError):
    """A run that was asked to stop and did so in order."""

    exit_code = EXIT_INTERRUPTED


class RoleFailure(LecritiqueError):
    """A role of a run (engine, trainer, evaluator, orchestrator) failed."""

    exit_code = EXIT_ROLE_FAILED


class Overloaded(LecritiqueError):
    """A bounded queue is full: nothing was queued, and the same request may be made again later."""

    exit_code = EXIT_ROLE_FAILED
