"""Loading a taskset and what it may need. The one module that imports `verifiers`."""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.verifiers.options import VerifiersOptions

# Its internals are used, so another version is another library.
_VERSION = "0.4.0"


def library() -> Library:
    """The library.

    Raises:
        ConfigurationError: it is not installed, or in another version.
    """
    try:
        found = importlib.metadata.version("verifiers")
        if found != _VERSION:
            raise ConfigurationError(f"task.type = 'verifiers' works with verifiers {_VERSION} alone, got {found}")
        import verifiers.v1
        from verifiers.v1 import agent, graph, session, types
        from verifiers.v1.utils import generic, loaders
    except ImportError as error:  # also when there are no metadata
        raise ConfigurationError(
            f"task.type = 'verifiers' needs the extra verifiers: pip install 'lecritique[verifiers]' ({error})"
        ) from error
    return Library(
        vf=verifiers.v1, agent=agent, graph=graph, session=session, types=types, loaders=loaders, generic=generic
    )


@dataclass(frozen=True, kw_only=True)
class Library:
    """The modules of the library that are used."""

    vf: Any
    agent: Any
    graph: Any
    session: Any
    types: Any
    loaders: Any
    generic: Any


def loaded_env(options: VerifiersOptions) -> Any:
    """Their `Env` around the taskset.

    Raises:
        ConfigurationError: there is no such taskset, or it needs what is not supported.
    """
    their = library()
    # A console script does not have the working directory on its path, and that is where a user's taskset may lie.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    config = {
        "id": options.environment or "",
        "taskset": {**options.taskset_options, "id": options.taskset},
    }
    try:
        env = their.loaders.load_environment(their.loaders.resolve_env_config(config))
        seats = [name for name, value in env.config if isinstance(value, their.vf.AgentConfig)]
    except Exception as error:  # the taskset's own code
        first_line = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
        raise ConfigurationError(
            f"task.taskset = {options.taskset!r} could not be loaded: {type(error).__name__}: {first_line}"
        ) from error
    if len(seats) != 1:
        raise ConfigurationError(
            f"task.taskset = {options.taskset!r} is played by {len(seats)} agents ({', '.join(seats)}), expected one"
        )
    if env.taskset.toolsets(env.taskset.config):
        raise ConfigurationError(f"task.taskset = {options.taskset!r} needs tool servers, which are not supported")
    return env


def tasks_of(taskset: Any, options: VerifiersOptions) -> list[Any]:
    """The taskset's tasks.

    Raises:
        ConfigurationError: there is no end to them, or they need what is not supported.
    """
    if options.rows is None and not taskset.bounded:
        raise ConfigurationError(f"task.taskset = {options.taskset!r} has no end, expected task.rows")
    tasks = list(itertools.islice(taskset, options.rows))
    for kind in {type(task): task for task in tasks}.values():
        for reason in _unsupported(kind):
            raise ConfigurationError(f"task.taskset = {options.taskset!r}: {reason}")
    return tasks


def _unsupported(task: Any) -> list[str]:
    """What the taskset's tasks need and this process does not offer."""
    their = library()
    name, base = type(task).__name__, their.vf.Task
    needs = [
        f"{name}.{hook.__name__} needs a container"
        for kind in ("reward", "metric")
        for hook in task.hooks(kind)
        if (wanted := inspect.signature(hook).parameters.get("runtime")) and wanted.default is inspect.Parameter.empty
    ]
    if task.NEEDS_CONTAINER:
        needs.append(f"{name} needs a container")
    needs += [
        f"{name}.{method} needs a container"
        for method in ("setup", "finalize")
        if getattr(type(task), method) is not getattr(base, method)
    ]
    if type(task).toolsets(task.config):
        needs.append(f"{name} needs tool servers, which are not supported")
    if any(hasattr(getattr(type(task), member, None), "intercept") for member in dir(type(task))):
        needs.append(f"{name} rewrites requests (@intercept), which is not supported")
    return needs
