"""What is known of the data sets, as measured on reasoning-gym 0.1.25: which are refused, and how others are scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

_NO_ANSWER = "its items have no reference answer"
_HASH_DEPENDENT = "its items depend on PYTHONHASHSEED, so that two processes see different rows"
_NOT_FIXED = "its items are not reproducible from a seed"

REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER)
    | {
        "ab": "some of its items have an empty answer, which no text can give",
        "composite": "it would hide data sets that are refused; mix with task.datasets instead",
        "codeio": "it executes stored programs in this process; task.type = 'codeio' runs them in a sandbox",
    }
)

# Usable from a file that `lecritique tasks freeze` wrote.
FREEZE_FIRST: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"),
        _HASH_DEPENDENT,
    )
    | {"list_functions": _NOT_FIXED}
)

# Their scorers evaluate what the model wrote, as Python or through sympy, and can hang: scored behind walls only.
SANDBOXED = frozenset(
    (
        "string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "puzzle24", "countdown",
        "polynomial_multiplication", "simple_integration", "intermediate_integration",
    )
)  # fmt: skip

# Data sets that take minutes for 200 items with the library's own options, or have fewer: what to validate instead.
VALIDATION_OPTIONS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "futoshiki": {"dataset_options": {"max_board_size": 5}},
        "intermediate_integration": {"rows": 20},
        "simple_integration": {"rows": 60},
        "sokoban": {"dataset_options": {"max_w": 6, "max_h": 6, "max_boxes": 4}},
        "sudoku": {"dataset_options": {"min_empty": 20, "max_empty": 30}},
        "tower_of_hanoi": {"rows": 90},
        "zebra_puzzles": {"dataset_options": {"num_people": 3, "num_characteristics": 3}},
    }
)


def refusal(name: str, *, frozen: bool) -> str:
    """Why data set `name` cannot be used, empty where it can; `frozen`: its items come from a file."""
    if name in REFUSED:
        return REFUSED[name]
    if name in FREEZE_FIRST and not frozen:
        return (
            f"{FREEZE_FIRST[name]}; freeze its items once (lecritique tasks freeze reasoning_gym dataset={name} "
            "--out FILE) and use task.file = FILE"
        )
    return ""


def safe_names(known: Iterable[str]) -> tuple[str, ...]:
    """Those of `known` that need neither a sandbox nor a frozen file."""
    return tuple(name for name in known if not refusal(name, frozen=False) and name not in SANDBOXED)
