"""Which tasks each bundled model learns, and in which shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lecritique.critic.templates import ContextPlacement, ReferenceContent
from lecritique.tasks.protocol import Environment
from lecritique.tasks.registry import load_environment

from .shape import END_ID, PAD_ID

# Recipes take seeds from 0 upwards; environments hash theirs, so any other number gives other data.
TRAIN_SEED, MEASURE_SEED = 730_001, 910_001
# From the second phase on there are checked examples.
CHECKING_PHASE = 1


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which part of the reference an example has in its context, and where."""

    placement: ContextPlacement
    content: ReferenceContent = "answer"

    @property
    def label(self) -> str:
        """As in the table of the model card."""
        return self.placement if self.content == "answer" else f"{self.placement}, {self.content}"


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """What of the reference an example is told in a teacher's words, in place of the policy's prompt."""

    content: ReferenceContent

    @property
    def label(self) -> str:
        """As in the table of the model card."""
        return f"teacher's prompt, {self.content}"


AnyReading = Reading | Teaching
TEACHINGS = (Teaching(content="answer"), Teaching(content="both"), Teaching(content="solution"))
PREFIX, SUFFIX = Reading(placement="system_prefix"), Reading(placement="user_suffix")
OFTEN_PLAIN: tuple[Reading | None, ...] = (None, PREFIX, None, SUFFIX)
SELDOM_PLAIN: tuple[Reading | None, ...] = (None, PREFIX, SUFFIX)
# Answer, worked solution and both, each at both places. Copying is learnt in a hundred steps, solving is not.
WITH_SOLUTIONS: tuple[Reading | None, ...] = (
    None,
    PREFIX,
    None,
    Reading(placement="system_prefix", content="solution"),
    None,
    None,
    SUFFIX,
    None,
    Reading(placement="system_prefix", content="both"),
    None,
    PREFIX,
    None,
    Reading(placement="user_suffix", content="solution"),
    None,
    Reading(placement="user_suffix", content="both"),
    None,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of task in the mix: how many examples a step of each phase holds, and what is measured at the end."""

    label: str
    task_type: str
    options: Mapping[str, Any]
    measured_options: Mapping[str, Any]
    rows: int
    per_step: tuple[int, ...]
    checked_per_step: tuple[int, ...]
    readings: tuple[Reading | None, ...]
    max_turn_tokens: int
    taught_per_step: tuple[int, ...] = ()

    def environment(self, *, measured: bool, rows: int) -> Environment:
        """The training or the measuring data."""
        options = {**(self.measured_options if measured else self.options), "rows": rows}
        seed = MEASURE_SEED if measured else TRAIN_SEED
        return load_environment(self.task_type, options, seed=seed)

    @property
    def informed(self) -> tuple[Reading, ...]:
        """The ways in which a critic's examples see the reference, each once."""
        return tuple(dict.fromkeys(reading for reading in self.readings if reading is not None))

    @property
    def teachings(self) -> tuple[Teaching, ...]:
        """The ways in which a teacher's examples see it."""
        return TEACHINGS if any(self.taught_per_step) else ()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One bundled model: its mix, its phases (steps, peak learning rate), and what marks a departure when it checks.

    Examples are padded to the longest of `padded_together` that are near in length; None pads all of a source alike.

    The end token is learnt as a mark soonest and serves a critic best where a response is one turn; between the turns
    of a dialogue it is said anyway, and the pad token, which no dialogue holds, serves better.
    """

    mark: int
    sources: tuple[Source, ...]
    phases: tuple[tuple[int, float], ...]
    data_note: str
    reading_note: str
    padded_together: int | None = None
    # Tokens; no example is as long. For the model card.
    longest: int = 160


def _sudoku_and_sums(*, single_turn_gold: int, checked: tuple[int, int, int]) -> tuple[Source, ...]:
    sudoku = {"size": 4, "style": "terse"}
    chain_sum = {
        "dataset": "chain_sum",
        "dataset_options": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
        "prompt_template": "{expression}",
    }
    return (
        Source(
            label="sudoku single turn",
            task_type="sudoku",
            options={**sudoku, "form": "single_turn", "min_empty": 4, "max_empty": 11},
            measured_options={**sudoku, "form": "single_turn", "min_empty": 10, "max_empty": 10},
            rows=60_000,
            per_step=(24, single_turn_gold),
            checked_per_step=(0, checked[0]),
            readings=OFTEN_PLAIN,
            max_turn_tokens=18,
        ),
        Source(
            label="sudoku multi turn",
            task_type="sudoku",
            options={**sudoku, "form": "multi_turn", "min_empty": 4, "max_empty": 10},
            measured_options={**sudoku, "form": "multi_turn", "min_empty": 10, "max_empty": 10},
            rows=60_000,
            per_step=(48, 24),
            checked_per_step=(0, checked[1]),
            readings=SELDOM_PLAIN,
            max_turn_tokens=3,
        ),
        Source(
            label="chain_sum",
            task_type="reasoning_gym",
            options=chain_sum,
            measured_options=chain_sum,
            rows=2_500,
            per_step=(16, 64),
            checked_per_step=(0, checked[2]),
            readings=OFTEN_PLAIN,
            max_turn_tokens=6,
        ),
    )


def _knights(roles: int, *, rows: int, gold: tuple[int, ...], checked: tuple[int, ...]) -> Source:
    # Of implications, equivalences and counts a model of this size learnt nothing in 250 steps.
    options = {
        "style": "terse",
        "kinds": ["role", "and", "or"],
        "max_depth": 1,
        "min_roles": roles,
        "max_roles": roles,
    }
    return Source(
        label=f"knights and knaves, {roles} roles",
        task_type="knights_knaves",
        options={**options, "split": "train"},
        measured_options={**options, "split": "held_out"},
        rows=rows,
        per_step=gold,
        checked_per_step=checked,
        readings=WITH_SOLUTIONS,
        max_turn_tokens=2 * roles + 2,
        taught_per_step=(0, 0, 16),
    )


_SUMS_NOTE = "three-term sums are so few that most questions occur in both all the same"
_HALF_NOTE = "A half (two thirds for multi turn) of the examples have the reference"
# Sums are learnt late, once copying and Sudoku work, and so is checking a dialogue against the reference: both
# have their weight in the second phase.
_SUDOKU_PHASES = ((540, 6e-3), (700, 4e-3))
VARIANTS = {
    "tiny": Variant(
        mark=END_ID,
        sources=_sudoku_and_sums(single_turn_gold=32, checked=(48, 16, 8)),
        phases=_SUDOKU_PHASES,
        data_note=_SUMS_NOTE,
        reading_note=_HALF_NOTE,
    ),
    "tiny-multi-turn": Variant(
        mark=PAD_ID,
        sources=_sudoku_and_sums(single_turn_gold=28, checked=(36, 28, 8)),
        phases=_SUDOKU_PHASES,
        data_note=_SUMS_NOTE,
        reading_note=_HALF_NOTE,
    ),
    "tiny-knights": Variant(
        mark=END_ID,
        sources=(
            _knights(3, rows=20_000, gold=(48, 32, 32), checked=(0, 12, 8)),
            _knights(4, rows=40_000, gold=(48, 32, 32), checked=(0, 32, 24)),
        ),
        # A teacher's words are learnt in the third phase: to copy from them is soon learnt by who can copy already.
        phases=((320, 4e-3), (280, 4e-3), (120, 2e-3)),
        data_note="measured are held-out puzzles, which differ from those of training by their content",
        reading_note="Seven of sixteen examples have the answer, the worked solution or both",
        padded_together=16,
        longest=240,
    ),
}
