"""Keys that were changed and that a run does not read: said before it starts, and not refused.

A recipe may name what its actors ask of a cluster and be run in one process first, with the same file.
"""

from __future__ import annotations

from collections.abc import Iterator

from lecritique.config.resolve import differences
from lecritique.config.schema import RunConfig, RuntimeSection

_OF_A_CLUSTER = ("runtime.address", "runtime.actors.")
# A recipe's whole table of actors is named as one.
_MOST_NAMED = 3


def unread(config: RunConfig) -> Iterator[str]:
    """A sentence where keys of a cluster were changed and nothing is placed on one."""
    if config.runtime.type == "ray":
        return
    unchanged = config.model_copy(update={"runtime": RuntimeSection()})
    keys = [key for key in differences(unchanged, config) if key.startswith(_OF_A_CLUSTER)]
    if len(keys) > _MOST_NAMED:
        keys = list(dict.fromkeys("runtime.actors" if key.startswith("runtime.actors.") else key for key in keys))
    if keys:
        named = ", ".join(f"'{key}'" for key in keys)
        yield f"Not read: {named}; only 'runtime.type' = 'ray' has actors, and this run's is '{config.runtime.type}'."
