"""Evaluations of a comparison's runs: those recorded while training, and folders of `lecritique eval`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lecritique.analysis.read import Comparison, Run
from lecritique.core.errors import DataError
from lecritique.runs.evaluations import PROBLEMS, SETTINGS, finished_results

# By (arm, seed): at each step the score of each set.
TrainingScores = Mapping[tuple[str, int], Mapping[int, Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """One folder: whose run it is, and by set the mean score of each problem and how the set was described.

    `missing` are (finished, planned) problems of sets that are not complete.
    """

    path: Path
    arm: str
    seed: int
    scores: Mapping[str, Mapping[int, float]]
    described: Mapping[str, Mapping[str, Any]]
    missing: Sequence[tuple[int, int]]


def training_scores(comparison: Comparison) -> TrainingScores:
    """What runs recorded at the steps that evaluate; what a resume superseded is left out."""
    return {key: _recorded(run) for key, run in comparison.runs.items()}


def evaluations(comparison: Comparison, folders: Sequence[Path]) -> list[Evaluated]:
    """Read folders of `lecritique eval`, each of a policy that is one of the comparison's runs.

    Raises:
        DataError: a folder that holds no evaluation, one of another policy, or two of one run on the same set.
    """
    found: list[Evaluated] = []
    for folder in folders:
        one = _evaluated(comparison, folder)
        for other in found:
            twice = set(one.scores) & set(other.scores)
            if twice and (one.arm, one.seed) == (other.arm, other.seed):
                raise DataError(
                    f"{folder} and {other.path} are both evaluations of arm {one.arm}, seed {one.seed}, on "
                    f"'{min(twice)}'; expected one."
                )
        found.append(one)
    return found


def _recorded(run: Run) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for event in _events(run.path / "events.jsonl"):
        step = event.get("step")
        if type(step) is not int:
            continue
        if event.get("kind") == "resumed":
            found = {earlier: sets for earlier, sets in found.items() if earlier <= step}
        elif event.get("kind") == "evaluation" and isinstance(event.get("sets"), dict):
            found[step] = {str(name): score for name, of in event["sets"].items() if (score := _score(of)) is not None}
    return found


def _score(described: Any) -> float | None:
    score = described.get("score") if isinstance(described, dict) else None
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def _events(file: Path) -> list[dict[str, Any]]:
    """Whole lines that are records; one that a kill cut off is left out."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _evaluated(comparison: Comparison, folder: Path) -> Evaluated:
    settings = _settings(folder)
    source = settings["policy"]["source"]
    run = _run_of(comparison, str(source))
    if run is None:
        raise DataError(f"{folder} evaluates the policy '{source}', which is no run of {comparison.path}")
    low = {name: float(described["reward_range"][0]) for name, described in settings["sets"].items()}
    scores: dict[str, dict[int, float]] = {name: {} for name in settings["sets"]}
    for result in finished_results(folder / PROBLEMS):
        if result.set not in scores or not result.scores:
            raise DataError(f"{folder / PROBLEMS}: a result of the set '{result.set}', which {SETTINGS} does not name")
        wrong = low[result.set]  # a failed sample counts as wrong, which is the lowest reward
        earned = [wrong if score is None else score for score in result.scores]
        scores[result.set][result.row] = sum(earned) / len(earned)
    planned = {name: int(described["problems"]) for name, described in settings["sets"].items()}
    return Evaluated(
        path=folder,
        arm=run.arm,
        seed=run.seed,
        scores={name: rows for name, rows in scores.items() if rows},
        described=settings["sets"],
        missing=[(len(rows), planned[name]) for name, rows in scores.items() if len(rows) < planned[name]],
    )


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        whole = isinstance(found["policy"]["source"], str) and all(
            len(described["reward_range"]) == 2 and math.isfinite(float(described["reward_range"][0]))
            and int(described["problems"]) >= 0
            for described in found["sets"].values()
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{folder} is no folder of an evaluation: {SETTINGS} cannot be read ({error})") from error
    if not whole:
        raise DataError(f"{folder} is no folder of an evaluation: {SETTINGS} lacks its policy or its sets")
    return dict(found)


def _run_of(comparison: Comparison, source: str) -> Run | None:
    """The run that a policy came from: by its place, or by ARM/seed-N in its path when the runs were moved."""
    place = Path(source).resolve()
    for run in comparison.runs.values():
        own = run.path.resolve()
        if place == own or own in place.parents:
            return run
    pairs = set(zip(Path(source).parts, Path(source).parts[1:], strict=False))
    for (arm, seed), run in comparison.runs.items():
        if not comparison.single and (arm, f"seed-{seed}") in pairs:
            return run
    return None
