"""How often the admissibility audit passes what is admissible and flags what is not, on the demo tasks.

    PYTHONPATH=. python benchmarks/audit_power.py                                   single turn
    PYTHONPATH=. python benchmarks/audit_power.py --recipe demo-multi-turn          with feedback between the turns

Each repetition draws other problems. Three critics (reference, siblings, rubric) are audited as they are, and a leak
of each kind is planted in what a critic is told and in what it says. A leak counts as flagged where the audit's
structural part finds it; the statistical test, which reads nothing but the values, is counted beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lecritique.analysis.audit import baseline_sums, without_mean
from lecritique.analysis.context_audit import audit_contexts, audit_values
from lecritique.analysis.gradient_statistics import mean_is_zero
from lecritique.analysis.study_subject import Critic, Subject, open_subject
from lecritique.core.task import Task
from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.credit.schedules import Group
from lecritique.tasks.sudoku.environment import SudokuEnvironment

Floats = NDArray[np.float64]
_STRUCTURAL_GROUPS = 8


class RubricSudoku(SudokuEnvironment):
    """Sudoku with a rubric that says a part of the solution: the bundled tasks have none."""

    def task(self, row: int) -> Task:
        """The puzzle, with its first four digits for the grader."""
        task = super().task(row)
        return replace(task, rubric=f"Begins with {task.metadata['solution'][:4]}.")


def main() -> None:
    """Audit again and again, and print how often each was flagged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--warmup-batches", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe = _recipe_with_arms(arguments.recipe, Path(folder))
        subject = open_subject(
            str(recipe),
            [],
            arm=None,
            critics=("reference", "siblings", "rubric"),
            warmup_batches=arguments.warmup_batches,
        )
    flagged: Counter[str] = Counter()
    for repetition in range(arguments.repetitions):
        groups = subject.problems(arguments.problems)
        flagged.update(structural(subject, groups[:_STRUCTURAL_GROUPS], seed=repetition))
        flagged.update(statistical(subject, groups, seed=repetition))
        print(f"repetition {repetition + 1}", dict(sorted(flagged.items())), flush=True)
    print(f"\nflagged of {arguments.repetitions}, {arguments.problems} problems each")
    for name in sorted(flagged):
        print(f"{flagged[name]:4d}  {name}")


def structural(subject: Subject, groups: Sequence[Group], *, seed: int) -> dict[str, int]:
    """Which contexts and values move when the future of a rollout is another."""
    vocabulary = len(subject.parts.tokenizer)
    found = {}
    for name, critic in subject.critics.items():
        told = audit_contexts(subject.contexts_of(critic), groups, vocabulary=vocabulary, seed=seed)
        said = audit_values(lambda group, c=critic: values_of(c, group), groups, vocabulary=vocabulary, seed=seed)
        found[f"structural, admissible: {name}"] = int(told.flagged or said.flagged)
    for leak, tell in CONTEXT_LEAKS.items():
        if _says_something(tell, groups):
            audited = audit_contexts(lambda g, t=tell: [t(x) for x in g.trajectories], groups, vocabulary=vocabulary)
            found[f"structural, leak in the context: {leak}"] = int(audited.flagged)
    critic = subject.critics["reference"]
    for leak, spoil in VALUE_LEAKS.items():
        if _changes_something(critic, spoil, groups):
            audited = audit_values(lambda g, s=spoil: spoilt(critic, g, s), groups, vocabulary=vocabulary, seed=seed)
            found[f"structural, leak in the values: {leak}"] = int(audited.flagged)
    return found


def statistical(subject: Subject, groups: Sequence[Group], *, seed: int) -> dict[str, int]:
    """Which baselines move the mean gradient."""
    trajectories = [group.trajectories for group in groups]
    masks = [[t.action_mask for t in members] for members in trajectories]
    columns = {f"admissible: {name}": [values_of(c, g) for g in groups] for name, c in subject.critics.items()}
    for leak, spoil in VALUE_LEAKS.items():
        if _changes_something(subject.critics["reference"], spoil, groups):
            columns[f"leak in the values: {leak}"] = [spoilt(subject.critics["reference"], g, spoil) for g in groups]
    sums = baseline_sums(subject, trajectories, [without_mean(column, masks) for column in columns.values()])
    return {
        f"statistical, {name}": int(mean_is_zero(each.gram, seed=seed).flagged)
        for name, each in zip(columns, sums, strict=True)
    }


def values_of(critic: Critic, group: Group) -> list[Floats]:
    """What the critic says of each member [T]."""
    (scored,) = critic.scored([group])
    return [prediction.values for prediction in scored.predictions or ()]


def spoilt(critic: Critic, group: Group, spoil: Callable[[Trajectory, Floats], Floats]) -> list[Floats]:
    """The same with a leak planted."""
    return [spoil(t, v) for t, v in zip(group.trajectories, values_of(critic, group), strict=True)]


def outcome(trajectory: Trajectory, values: Floats) -> Floats:
    """The return itself."""
    return np.where(trajectory.action_mask, trajectory.episode_return, values)


def future_token(trajectory: Trajectory, values: Floats) -> Floats:
    """The value behind the token that it stands for: the critic has read the choice that it judges."""
    actions = np.flatnonzero(trajectory.action_mask)
    moved = values.copy()
    moved[actions[:-1]] = values[actions[1:]]
    return moved


def later_feedback(trajectory: Trajectory, values: Floats) -> Floats:
    """Within a turn the value behind the environment's answer to it."""
    turns = trajectory.turn_index
    moved = values.copy()
    for turn in np.unique(turns[trajectory.action_mask])[:-1]:
        behind = np.flatnonzero(trajectory.action_mask & (turns > turn))[0]
        moved[trajectory.action_mask & (turns == turn)] = values[behind]
    return moved


VALUE_LEAKS = {"outcome": outcome, "future token": future_token, "later feedback": later_feedback}


def _told(trajectory: Trajectory, ids: NDArray[np.int64]) -> ContextInsertion:
    return ContextInsertion(position=0, token_ids=ids)


def _feedback_ids(trajectory: Trajectory) -> NDArray[np.int64]:
    mask = trajectory.action_mask
    return trajectory.token_ids[~mask & (np.arange(len(mask)) > mask.argmax())]


CONTEXT_LEAKS: dict[str, Callable[[Trajectory], ContextInsertion]] = {
    "outcome": lambda t: _told(t, np.array([48 + int(t.episode_return > 0)])),
    "future token": lambda t: _told(t, t.token_ids[t.action_mask]),
    "later feedback": lambda t: _told(t, _feedback_ids(t)),
}


def _says_something(tell: Callable[[Trajectory], ContextInsertion], groups: Sequence[Group]) -> bool:
    return any(len(tell(t).token_ids) for group in groups for t in group.trajectories)


def _changes_something(critic: Critic, spoil: Callable[[Trajectory, Floats], Floats], groups: Sequence[Group]) -> bool:
    for group in groups[:_STRUCTURAL_GROUPS]:
        before = values_of(critic, group)
        after = [spoil(t, v) for t, v in zip(group.trajectories, before, strict=True)]
        if any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            return True
    return False


def _recipe_with_arms(name: str, folder: Path) -> Path:
    shipped = (resources.files("lecritique") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    text = shipped.replace('type = "sudoku"', 'type = "benchmarks.audit_power:RubricSudoku"')
    for kind in ("reference", "siblings", "rubric"):
        text += f'\n[arms.{kind}]\npreset = "pvf"\ncritic = {{ context = {{ type = "{kind}" }} }}\n'
    path = folder / "audited.toml"
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
