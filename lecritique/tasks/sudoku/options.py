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

    min_difficulty: int = Field(default=0, ge=0)
    """Easiest puzzle. On 9x9, guesses that a solver which fills all singles first has to take back: 0 needs singles
    only. On 4x4, digits that filling cells row by row has to take back."""

    max_difficulty: int = Field(default=1_000_000, ge=0)
    """Hardest puzzle, in the same measure. Default: no puzzle is harder."""

    form: Literal["single_turn", "multi_turn"] = "single_turn"
    """`single_turn`: the whole grid in one answer. `multi_turn`: one empty cell a turn, in row-major order."""

    style: Literal["terse", "verbose"] = "terse"
    """`terse`: symbols only, for tiny models. `verbose`: instructions and <answer> tags, for chat models."""

    answer_from: Literal["turn", "tags", "last_number"] | None = None
    """Where an answer is read: `turn`, the whole turn; `tags`, the last complete pair of <answer> tags;
    `last_number`, the last number of a turn of `multi_turn` (names of cells are no numbers). After `tags` and
    `last_number` the policy may reason first. Default: `turn` when terse, `tags` when verbose."""

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
            "answer_from": self.answer_from or ("turn" if self.style == "terse" else "tags"),
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
        if self.min_difficulty > self.max_difficulty:
            raise ValueError(
                f"min_difficulty = {self.min_difficulty} is above max_difficulty = {self.max_difficulty}, expected "
                "min_difficulty <= max_difficulty"
            )
        self._require_readable()
        if self.on_invalid == "retry" and self.form == "single_turn":
            raise ValueError('on_invalid = "retry" needs form = "multi_turn": a single turn cannot be asked again')
        if self.max_retries is not None and (self.max_retries > 0) != (self.on_invalid == "retry"):
            raise ValueError(
                f'max_retries = {self.max_retries} does not go with on_invalid = "{self.on_invalid}", expected at '
                'least 1 with "retry" and 0 with "end"'
            )
        return self

    def _require_readable(self) -> None:
        """Raise ValueError where `answer_from` does not go with the form or the style."""
        if self.answer_from is not None and (self.answer_from == "turn") != (self.style == "terse"):
            raise ValueError(
                f'answer_from = "{self.answer_from}" does not go with style = "{self.style}", expected "turn" with '
                '"terse", and "tags" or "last_number" with "verbose"'
            )
        if self.answer_from == "last_number" and self.form == "single_turn":
            raise ValueError('answer_from = "last_number" needs form = "multi_turn": a grid is more than one number')
