"""Optional further homes of the metrics that every run writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lecritique.core.errors import ConfigurationError
from lecritique.core.metrics import CATALOG


class Sink(Protocol):
    """Takes one row of metrics per step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class TensorboardSink:
    """Event files under `folder`; one scalar per metric, grouped by role.

    A resumed run writes its steps from `first_step` on again: what was written of them before is taken back.
    """

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        self._writer = _summary_writer()(str(folder), purge_step=first_step or None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step; undefined ones are left out."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"{CATALOG[name].role}/{name}", value, step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


def require_sinks(names: Sequence[str]) -> None:
    """Refuse sinks that are not installed, before anything is written.

    Raises:
        ConfigurationError: names the extra to install.
    """
    if "tensorboard" in names:
        _summary_writer()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigurationError(
            "'run.sinks' names tensorboard, which is not installed: pip install 'lecritique[tensorboard]'."
        ) from error
    return SummaryWriter


def open_sinks(names: Sequence[str], folder: Path, *, first_step: int = 0) -> list[Sink]:
    """The configured sinks of a run that writes its steps from `first_step` on."""
    return [TensorboardSink(folder / "tensorboard", first_step=first_step) for name in names if name == "tensorboard"]
