"""The table of a comparison as Markdown, for docs/experiments.

python -m scripts.experiment_table runs/knights --reference ppo --sets held_out
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--reference", required=True, help="arm that the others are compared with")
    parser.add_argument("--sets", default="", help="evaluation sets, separated by commas")
    arguments = parser.parse_args()
    summary = json.loads((arguments.directory / "summary.json").read_text(encoding="utf-8"))
    sets = [name for name in arguments.sets.split(",") if name]
    print("\n".join(table(arguments.directory, summary, arguments.reference, sets)))


def table(directory: Path, summary: Mapping[str, Any], reference: str, sets: Sequence[str]) -> list[str]:
    """Endpoints of each seed, the paired difference to the reference, and what was evaluated at the end."""
    head = [
        "arm",
        "reward at the end, by seed",
        f"minus {reference} [95%]",
        "p",
        "EV",
        *(f"{s}, by seed" for s in sets),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm, found in summary["arms"].items():
        cells = [
            f"`{arm}`",
            _list(found["reward_last"]),
            *_difference(summary, arm, reference),
            _list(found["explained_variance_last"]),
            *(
                _list([_evaluated(directory / arm / f"seed-{seed}", name) for seed in summary["seeds"]])
                for name in sets
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _difference(summary: Mapping[str, Any], arm: str, reference: str) -> tuple[str, str]:
    for pair in summary["paired"]:
        if pair["metric"] == "reward" and {pair["a"], pair["b"]} == {arm, reference} and arm != reference:
            sign = 1.0 if pair["a"] == arm else -1.0
            low, high = sorted((sign * pair["low"], sign * pair["high"]))
            p = pair.get("permutation_p")
            return f"{sign * pair['difference']:+.3f} [{low:+.3f}, {high:+.3f}]", "" if p is None else f"{p:.2f}"
    return "", ""


def _evaluated(run: Path, name: str) -> float | None:
    """The mean reward of the last evaluation on a set."""
    found = None
    for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event.get("kind") == "evaluation" and name in event.get("sets", {}):
            found = event["sets"][name]["score"]
    return found


def _list(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return " ".join("-" if value is None else f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main()
