"""Functions that a configuration names as `module:function`, such as a verifier of one's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.options import nearest


def named_function(name: str, *, key: str) -> Callable[..., Any]:
    """The function that `module:function` names; the module may lie in the working directory.

    Args:
        name: as it stands in the configuration.
        key: where it stands, such as `task.verifier`, for messages.

    Raises:
        ConfigurationError: another form, a module that cannot be imported, or nothing callable of that name.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigurationError(f"{key}: got {name!r}, expected module:function")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code may raise anything while it is imported
        raise ConfigurationError(
            f"{key} = {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, function_name, None)
    if not callable(found):
        known = sorted(known for known, value in vars(module).items() if callable(value))
        raise ConfigurationError(
            f"{key} = {name!r}: module {module_name!r} has no function {function_name!r}{nearest(function_name, known)}"
        )
    return found
