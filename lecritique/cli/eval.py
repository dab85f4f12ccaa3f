"""`lecritique eval`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from lecritique.cli.output import console, duration, fail, number
from lecritique.cli.train import Overrides
from lecritique.core.errors import EXIT_ROLE_FAILED, ConfigurationError

if TYPE_CHECKING:
    from lecritique.runs.evaluations import ProblemResult


def evaluate(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="A run, one of its checkpoints, a model folder or name, a hub id.")
    ],
    overrides: Overrides = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A recipe or a task type, and overrides of its own in the same word: 'knights task.split=roles_9'. "
            "Give it several times for several sets."
        ),
    ] = None,
    k: Annotated[int | None, typer.Option(min=1, help="Samples of each problem; by default the recipe's.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Problems of each set at most; 0 is all.")] = 0,
    split: Annotated[
        Literal["evaluation", "train", "all"] | None,
        typer.Option(help="Which rows; by default those kept for evaluation, all where none are."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Also split results by this key of the tasks' metadata.")] = None,
    pass_at: Annotated[str | None, typer.Option(help="k of pass@k, separated by commas; by default 1, 2, 4, ...")] = (
        None
    ),
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; the same call again resumes it.")] = None,
) -> None:
    """Measure a policy: avg@K and pass@k with intervals over problems. Failed and truncated samples count as wrong.

    Examples: `lecritique eval runs/mine --task demo task.seed=1 --k 8` and
    `lecritique eval runs/mine --task aime24 --task aime25 --k 32 --out evals/mine`.
    """
    pass_ks = _numbers(pass_at)
    from lecritique.runs.evaluations import EvaluationFolder
    from lecritique.runtime.evaluation_plan import Wishes, plan_evaluation, run_evaluation
    from lecritique.runtime.threads import choose_threads

    wishes = Wishes(
        tasks=tuple(task or ()),
        overrides=tuple(overrides or ()),
        k=k,
        rows=rows,
        split=split,
        split_by=by,
        seed=seed,
    )
    plan = plan_evaluation(policy, wishes)
    choose_threads(plan.policy.language.model.num_parameters())
    for note in plan.notes:
        console.print(f"note: {note}", soft_wrap=True)
    with closing(EvaluationFolder(out or _default_out(policy), plan.settings)) as folder:
        total = sum(len(problems.rows) for problems in plan.sets)
        progress = _Progress(total, done=len(folder.results))
        run_evaluation(plan, folder, on_problem=progress.show)
        _finish(folder.path, folder.results, plan.settings, pass_ks)


def _finish(path: Path, results: Sequence[ProblemResult], settings: dict[str, Any], pass_ks: Sequence[int]) -> None:
    from lecritique.analysis.evaluation import evaluation_summary
    from lecritique.runs.directory import write_json
    from lecritique.runs.evaluations import SUMMARY

    summary = evaluation_summary(results, settings, pass_ks=pass_ks)
    write_json(path / SUMMARY, summary)
    console.print(summary_table(summary))
    console.print(
        "n problems, K samples of each; samples cut by a token limit, mute (without an answer) and failed (wrong).",
        soft_wrap=True,
    )
    if "average" in summary:
        average = summary["average"]
        low, high = average["interval"]
        console.print(
            f"average of {average['of']}: {number(average['score'])} [{number(low)}, {number(high)}]", soft_wrap=True
        )
    console.print(f"results: {path}", soft_wrap=True)
    dead = [name for name, figures in summary["sets"].items() if figures["failed"] == figures["samples"]]
    if dead:
        kinds = ", ".join(f"{count} {kind}" for kind, count in summary["sets"][dead[0]]["failures"].items())
        fail(f"every sample of '{dead[0]}' failed ({kinds}): this measures no policy.", EXIT_ROLE_FAILED)


def summary_table(summary: dict[str, Any]) -> Table:
    """One line a set, and one for each of its splits: problems, and samples cut, without an answer, and failed."""
    table = Table()
    table.add_column("set", ratio=1)
    for heading in ("n", "K", "avg@K", "95%", "pass@K", "cut", "mute", "fail"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures in summary["sets"].items():
        table.add_row(name, *_cells(figures, figures["k"]))
        for split, of_split in figures.get("splits", {}).items():
            table.add_row(f"  {summary['split_by']} {split}", *_cells(of_split, figures["k"]))
    return table


def _cells(figures: dict[str, Any], k: int) -> list[str]:
    low, high = figures["interval"]
    return [
        str(figures["problems"]),
        str(k),
        number(figures["score"]),
        f"{number(low)} to {number(high)}",
        number(figures["pass_at_k"].get(str(k))),
        str(figures["truncated"]),
        str(figures["unread"]) if figures["readable"] else "-",
        str(figures["failed"]),
    ]


class _Progress:
    """A line now and then: problems done, score so far, time left."""

    def __init__(self, total: int, *, done: int) -> None:
        self._total, self._first, self._done = total, done, done
        self._sum = 0.0
        self._started = self._shown = time.perf_counter()
        if done:
            console.print(f"{done} of {total} problems are done already.", soft_wrap=True)

    def show(self, result: ProblemResult) -> None:
        """A problem is finished."""
        self._done += 1
        self._sum += sum(score or 0.0 for score in result.scores) / len(result.scores)
        now, played = time.perf_counter(), self._done - self._first
        if self._done < self._total and now - self._shown < 5.0:
            return
        self._shown = now
        left = (now - self._started) / played * (self._total - self._done)
        console.print(
            f"problem {self._done}/{self._total}  score {number(self._sum / played)}  {duration(left)} left",
            soft_wrap=True,
        )


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise ConfigurationError(f"--pass-at: got {text!r}, expected numbers of at least 1, separated by commas.")
    return numbers


def _default_out(policy: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("evals") / f"{Path(policy).name or 'policy'}-{stamp}"
