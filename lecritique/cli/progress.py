"""Progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column

from lecritique.cli.output import console, duration, number
from lecritique.core.spending import UNITS

# Below this a bar would take the room of the figures.
_WIDTH_FOR_BAR = 100


def _columns() -> list[ProgressColumn]:
    """Label, bar and step stay whole; the figures wrap where there is no room."""
    bar = [BarColumn(bar_width=None)] if console.width >= _WIDTH_FOR_BAR else []
    return [
        TextColumn("[bold]{task.description}"),
        *bar,
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[text]}", table_column=Column()),
    ]


class TrainProgress:
    """Shows reward, EV, rho, tokens/s and time left of one run, of which `done` steps are done already.

    With `limits` on what may be spent, by unit, it also shows how much of the nearest is.
    """

    def __init__(self, label: str, steps: int, *, done: int = 0, limits: Mapping[str, float] | None = None) -> None:
        self._label, self._steps, self._first = label, steps, done
        self._limits = limits or {}
        self._share: float | None = None
        self._told = 0.0
        self._started = time.perf_counter()
        self._every = max(1, steps // 20)
        self._live = Progress(*_columns(), console=console) if console.is_terminal else None

    def __enter__(self) -> TrainProgress:
        if self._live:
            self._live.start()
            self._bar = self._live.add_task(escape(self._label), total=self._steps, completed=self._first, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Show one step."""
        done = step + 1
        elapsed = time.perf_counter() - self._started
        left = elapsed / (done - self._first) * (self._steps - done)
        share = spent_share(metrics, self._limits)
        text = self.text(metrics, left)
        if share is not None:
            # The share before the first step of this process is not known; that of the first step stands in for it.
            self._share = share if self._share is None else self._share
            rate = (share - self._share) / elapsed if share > self._share else share / elapsed
            left = min(left, max(0.0, 1.0 - share) / rate)
            text = f"{100 * min(share, 1.0):.0f}% of the budget  {self.text(metrics, left)}"
        if self._live:
            self._live.update(self._bar, completed=done, text=text)
        elif self._is_told(done, share):
            console.print(f"{self._label}  step {done}/{self._steps}  {text}", soft_wrap=True)

    def _is_told(self, done: int, share: float | None) -> bool:
        """Whether a step gets a line of its own: some twenty do."""
        if share is not None and (share >= 1.0 or share - self._told >= 0.05):
            self._told = share
            return True
        return done % self._every == 0 or done in (self._first + 1, self._steps)

    @staticmethod
    def text(metrics: dict[str, float], seconds_left: float) -> str:
        """The figures of a step in one line."""
        parts = [f"reward {number(metrics['reward'])}"]
        if "value_updates" in metrics:
            parts.append(f"EV {number(metrics.get('explained_variance'))}")
        if "rho" in metrics:
            parts.append(f"rho {number(metrics['rho'])}")
        if "evaluation_score" in metrics:
            parts.append(f"held out {number(metrics['evaluation_score'])}")
        parts.append(f"{metrics['tokens_per_second']:,.0f} tok/s")
        parts.append(f"{duration(seconds_left)} left")
        return "  ".join(parts)


def spent_share(metrics: Mapping[str, float | None], limits: Mapping[str, float]) -> float | None:
    """How much of the nearest limit is spent by a row of metrics; None without limits."""
    return max(((metrics.get(UNITS[unit]) or 0.0) / limit for unit, limit in limits.items()), default=None)
