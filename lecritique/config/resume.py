"""What a resumed run may change: how long it goes on, what it saves, and where it runs. Never the method.

Everything else would make one run out of two methods; such a change is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from lecritique.config.explain import configuration_error
from lecritique.config.load import named_keys, parse_override, with_overrides, with_section_defaults
from lecritique.config.resolve import device_kind, device_of, differences
from lecritique.config.schema import RunConfig, RuntimeSection
from lecritique.core.errors import ConfigurationError

# Nothing that is trained depends on these.
MAY_CHANGE = (
    "run.steps",
    "run.budget",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.save_rollouts_every",
    "run.saved_rollouts",
    "run.sinks",
    "run.eval_every",
    "eval",
    "rollout.max_failed_fraction",
    "runtime.address",
    "runtime.actors.strategy",
    "runtime.actors.start_seconds",
    "runtime.actors.silent_seconds",
    "runtime.actors.stuck_seconds",
    "runtime.actors.restarts",
    "runtime.actors.restores",
    "runtime.actors.object_store_mib",
    "runtime.engine.start_seconds",
    "runtime.engine.restarts",
    "runtime.engine.stuck_seconds",
    "runtime.recompute_activations",
)
# The method stays the same and sums are taken in another order: the last bits of the resumed run change.
# 'runtime.dtype' is not here: weights and moments were saved in one precision.
MAY_CHANGE_BITS = (
    "runtime.type",
    "runtime.actors.engines",
    "runtime.actors.evaluators",
    "runtime.actors.policy",
    "runtime.actors.critic",
    "runtime.device",
    "runtime.ranks",
    "runtime.micro_batch_tokens",
    "runtime.layout",
    "runtime.engine",
    "runtime.decode_rows",
    "runtime.decode_chunk_tokens",
    "runtime.placement",
    "runtime.evaluator_wait_seconds",
    "runtime.evaluator_queue_tokens",
    "rollout.in_flight",
)

Changes = dict[str, tuple[Any, Any]]


def with_changes(own: RunConfig, overrides: Sequence[str], *, machine: str) -> RunConfig:
    """A run's own configuration with overrides, not yet resolved nor checked against `MAY_CHANGE`.

    Left open, unless the overrides name them: the device where the models move, for it follows from where they go; and
    what follows from the kind of device where that becomes another one. A run that stays on its kind keeps both.

    Args:
        own: what the run is, resolved.
        overrides: as they were typed, `key.path=value`.
        machine: the device of this machine that a run takes where none is named.

    Raises:
        ConfigurationError: an unknown key or an unfit value.
    """
    tree = with_overrides(own.model_dump(mode="json"), [parse_override(text) for text in overrides])
    try:
        wanted = RunConfig.model_validate(with_section_defaults(tree, RunConfig))
    except ValidationError as error:
        raise configuration_error(error, RunConfig) from error
    named = named_keys(overrides)
    if _places(own.runtime) != _places(wanted.runtime):
        wanted = _left_open(wanted, ("device",), named)
    if device_kind(device_of(own, machine)) != device_kind(device_of(wanted, machine)):
        wanted = _left_open(wanted, ("layout", "micro_batch_tokens"), named)
    return wanted


def _left_open(config: RunConfig, keys: Sequence[str], named: Sequence[str]) -> RunConfig:
    """Without its own values for those keys of `runtime` that are not named."""
    unnamed = {key: None for key in keys if f"runtime.{key}" not in named}
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=unnamed)})


def _places(runtime: RuntimeSection) -> tuple[Any, ...]:
    """What a device follows from where none is named: this machine, or the GPUs that actors ask for."""
    actors = runtime.actors
    asked = (actors.engines, actors.evaluators, actors.policy, actors.critic) if runtime.type == "ray" else ()
    return (runtime.type, *(each.gpus for each in asked))


def allowed_changes(own: RunConfig, wanted: RunConfig, *, overrides: Sequence[str] = ()) -> Changes:
    """Keys on which two resolved configurations differ, with the run's own value and the new one.

    Args:
        own: what the run is.
        wanted: what it is to be.
        overrides: as they were typed, `key.path=value`: a refusal names one of them rather than what follows from it.

    Raises:
        ConfigurationError: a key that a resumed run may not change.
    """
    changes = differences(own, wanted)
    allowed = (*MAY_CHANGE, *MAY_CHANGE_BITS)
    refused = [key for key in changes if not any(_within(key, name) for name in allowed)]
    if refused:
        typed = named_keys(overrides)
        key = min(
            refused, key=lambda k: (not any(_within(k, name) for name in typed), not k.endswith(".type"), k.count("."))
        )
        before, after = changes[key]
        raise ConfigurationError(
            f"'{key}' was {before!r} and cannot become {after!r} when a run is resumed: it would be another run. "
            f"What may change: {', '.join(allowed)}."
        )
    return changes


def _within(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def changes_bits(changes: Mapping[str, Any]) -> bool:
    """Whether the resumed run differs in its last bits from one that was never interrupted."""
    of_order = (key for key in changes if not any(_within(key, name) for name in MAY_CHANGE))
    return any(_within(key, name) for key in of_order for name in MAY_CHANGE_BITS)
