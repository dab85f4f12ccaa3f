"""Options of the Knights and Knaves environment."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lecritique.tasks.knights_knaves.generator import KINDS
from lecritique.tasks.knights_knaves.logic import MOST_ROLES
from lecritique.tasks.options import TaskOptions

Kind = Literal["role", "not", "and", "or", "implies", "iff", "count"]
Split = Literal["train", "held_out", "roles_9", "roles_10", "roles_11"]

# VP's data: 5,000 puzzles of 4 to 8 roles to train on, 500 held out, 100 each of 9, 10 and 11.
_SPLITS: dict[str, tuple[int, int, int]] = {
    "train": (4, 8, 5000),
    "held_out": (4, 8, 500),
    "roles_9": (9, 9, 100),
    "roles_10": (10, 10, 100),
    "roles_11": (11, 11, 100),
}
_OF_THE_GENERATOR = ("split", "min_roles", "max_roles", "kinds", "max_depth", "names", "role_words", "wording")


class KnightsKnavesOptions(TaskOptions):
    """Which puzzles, and how they are worded."""

    path: str | None = None
    """A JSON Lines file in the published format (Xie et al., arXiv:2410.23123) instead of generated puzzles. Rows
    whose puzzle occurred before in the file are left out."""

    split: Split | None = None
    """Which part, with VP's roles and rows as defaults: `train` (4 to 8 roles, 5,000 rows), `held_out` (4 to 8, 500)
    and `roles_9`, `roles_10`, `roles_11` (100 each). A puzzle is held out by a hash of its statements, so no seed
    and no number of rows makes parts overlap; every part but `train` is held out. Default: `train`."""

    rows: int | None = Field(default=None, ge=1)
    """Number of puzzles. Default: that of the split, or all of the file."""

    min_roles: int | None = Field(default=None, ge=2, le=MOST_ROLES)
    """Fewest inhabitants. Default: that of the split."""

    max_roles: int | None = Field(default=None, ge=2, le=MOST_ROLES)
    """Most inhabitants; the numbers in between take turns, row by row. Default: that of the split."""

    kinds: list[Kind] | None = None
    """Kinds of statement. Default: all of `role`, `not`, `and`, `or`, `implies`, `iff`, `count`."""

    max_depth: int | None = Field(default=None, ge=1, le=4)
    """How deep compound statements are nested: 1 joins plain ones only. Default: 2."""

    style: Literal["terse", "verbose"] = "verbose"
    """`terse`: symbols (`A:Bk&Cn`), for tiny models. `verbose`: sentences, for chat models."""

    answer_tags: bool = True
    """Read a verbose answer from the last complete pair of <answer> tags, so that reasoning may stand before it. False
    reads the whole response, in which every claim then counts."""

    names: Literal["common", "uncommon", "letters"] | None = None
    """What inhabitants of verbose puzzles are called. Default: `common`."""

    role_words: Literal["knight", "hero", "saint", "angel"] | None = None
    """Who tells the truth in verbose puzzles: knights (and knaves), heroes (villains), saints (sinners), angels
    (devils). Default: `knight`."""

    wording: Literal["plain", "varied"] | None = None
    """`plain` reports each statement of a verbose puzzle in the same words, `varied` in one of eight ways. Default:
    `varied`."""

    def resolved(self, seed: int) -> Self:
        """These options without None, but for what only generated, or only read, puzzles have."""
        if self.path is not None:
            return super().resolved(seed)
        split = self.split or "train"
        fewest, most = self.role_range
        update: dict[str, object] = {
            "split": split,
            "rows": self.rows or _SPLITS[split][2],
            "min_roles": fewest,
            "max_roles": most,
            "kinds": self.kinds or list(KINDS),
            "max_depth": self.max_depth or 2,
        }
        if self.style == "verbose":
            update["names"] = self.names or "common"
            update["role_words"] = self.role_words or "knight"
            update["wording"] = self.wording or "varied"
        return super().resolved(seed).model_copy(update=update)

    @property
    def role_range(self) -> tuple[int, int]:
        """Fewest and most roles, derived where not given: a lone bound moves the other default with it."""
        fewest, most, _ = _SPLITS[self.split or "train"]
        if self.min_roles is not None:
            fewest, most = self.min_roles, max(self.min_roles, most)
        if self.max_roles is not None:
            fewest, most = (min(fewest, self.max_roles) if self.min_roles is None else fewest), self.max_roles
        return fewest, most

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.path is not None:
            given = [name for name in _OF_THE_GENERATOR if getattr(self, name) is not None]
            if given:
                raise ValueError(f"{given[0]} is for generated puzzles, got path = {self.path!r} as well")
            if self.style == "terse":
                raise ValueError('style = "terse" is for generated puzzles: a file brings its own wording')
            return self
        fewest, most = self.role_range
        if fewest > most:
            raise ValueError(f"min_roles = {fewest} is above max_roles = {most}, expected min_roles <= max_roles")
        if self.split not in (None, "train", "held_out") and self.role_range != _SPLITS[self.split][:2]:
            raise ValueError(f'split = "{self.split}" has its own number of roles, got {fewest} to {most}')
        if self.kinds is not None and (not self.kinds or len(set(self.kinds)) < len(self.kinds)):
            raise ValueError(f"kinds = {self.kinds}, expected at least one kind of statement and none twice")
        # Where everyone only names somebody's role, swapping all roles turns a solution into another.
        if self.kinds is not None and set(self.kinds) <= {"role", "not"}:
            raise ValueError(f"kinds = {self.kinds} alone never decide a puzzle, expected one more kind of statement")
        verbose_only = [name for name in ("names", "role_words", "wording") if getattr(self, name) is not None]
        if self.style == "terse" and (verbose_only or not self.answer_tags):
            name = verbose_only[0] if verbose_only else "answer_tags"
            raise ValueError(f'{name} is for style = "verbose", got style = "terse"')
        return self
