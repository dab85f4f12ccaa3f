"""Options of the Sudoku environment."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lecritique.tasks.options import TaskOptions

# Four clues are the fewest of a unique 4x4 puzzle. Removing clues at random stalls near 56 empty cells on 9x9,
# so more would be asked for in vain.
_MOST_EMPTY = {4: 12, 9: 56}
_DEFAULT_EMPTY = {4: (4, 10), 9: (30, 50)}
_DEFAULT_ROWS = {4: 2000, 9: 500}


class SudokuOptions(TaskOptions):
    """Which puzzles, and how they are played."""

    size: Literal[4, 9] = 4
    """Side of the grid: 4 (boxes of 2x2) or 9 (boxes of 3x3)."""

    rows: int | None = Field(default=None, ge=1)
    """Number of puzzles. Default: 2000 of size 4, 500 of size 9."""

    min_empty: int | None = Field(default=None, ge=1)
    """Fewest empty cells of a puzzle. Default: 4 of 16, 30 of 81."""

    max_empty: int | None = Field(default=None, ge=1)
    """Most empty cells of a puzzle. Default: 10 of 16, 50 of 81."""

    form: Literal["single_turn", "multi_turn"] = "single_turn"
    """`single_turn`: the whole grid in one answer. `multi_turn`: one empty cell a turn, in row-major order."""

    style: Literal["terse", "verbose"] = "terse"
    """`terse`: symbols only, for tiny models. `verbose`: instructions and <answer> tags, for chat models."""

    on_invalid: Literal["end", "retry"] = "end"
    """A malformed or rule-breaking digit of `multi_turn` ends the episode with reward 0, or is asked again."""

    max_retries: int | None = Field(default=None, ge=0)
    """How many invalid answers an episode survives. Default: 3 with `on_invalid = "retry"`, else 0."""

    def resolved(self, seed: int) -> Self:
        """These options without None."""
        fewest, most = self.empty_range
        retries = self.max_retries if self.max_retries is not None else 3 * (self.on_invalid == "retry")
        update = {
            "rows": self.rows or _DEFAULT_ROWS[self.size],
            "min_empty": fewest,
            "max_empty": most,
            "max_retries": retries,
        }
        return super().resolved(seed).model_copy(update=update)

    @property
    def empty_range(self) -> tuple[int, int]:
        """Fewest and most empty cells, derived where not given: a lone bound moves the other default with it."""
        fewest, most = _DEFAULT_EMPTY[self.size]
        if self.min_empty is not None:
            fewest, most = self.min_empty, max(self.min_empty, most)
        if self.max_empty is not None:
            fewest, most = (min(fewest, self.max_empty) if self.min_empty is None else fewest), self.max_empty
        return fewest, most

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        fewest, most = self.empty_range
        if fewest > most:
            raise ValueError(f"min_empty = {fewest} is above max_empty = {most}, expected min_empty <= max_empty")
        if most > _MOST_EMPTY[self.size]:
            raise ValueError(
                f"got {most} empty cells, expected at most {_MOST_EMPTY[self.size]} for size = {self.size}: "
                "with fewer clues a unique solution is rare or impossible"
            )
        if self.on_invalid == "retry" and self.form == "single_turn":
            raise ValueError('on_invalid = "retry" needs form = "multi_turn": a single turn cannot be asked again')
        if self.max_retries is not None and (self.max_retries > 0) != (self.on_invalid == "retry"):
            raise ValueError(
                f'max_retries = {self.max_retries} does not go with on_invalid = "{self.on_invalid}", expected at '
                'least 1 with "retry" and 0 with "end"'
            )
        return self
