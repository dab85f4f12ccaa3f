"""`lecritique compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from lecritique.cli.output import console, fail, number, print_table
from lecritique.cli.progress import spent_share
from lecritique.cli.train import Overrides, RecipeArgument
from lecritique.config.comparison import budget_of, compare_section
from lecritique.config.explain import nearest
from lecritique.config.load import arm_names, load_recipe
from lecritique.core.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_ROLE_FAILED, ConfigurationError
from lecritique.core.spending import UNITS

if TYPE_CHECKING:
    from lecritique.runtime.comparison import Job, Plan


def compare(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    arms: Annotated[
        str | None,
        typer.Option(
            help="Presets or arms of the recipe, separated by commas; by default what its \\[compare] says, "
            "else mean,value,pvf,tether."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Seeds, separated by commas; arms share data order by seed. By default what the recipe says, else 0."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time, by default what the recipe says, else 1.")
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores that they share, by default all that this process may use.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What each run may spend, such as tokens=2e6, in place of run.steps: rollouts, tokens (sampled), "
            "flops (estimated) or seconds (of training)."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the comparison; a second call resumes it.")] = None,
) -> None:
    """Train several arms on the same tasks in the same order, and report which baseline wins.

    A recipe may say all of this in a table `compare`; what is given here comes before it.

    Examples: `lecritique compare demo --arms mean,value,pvf,tether --seeds 0,1 --jobs 2 --out runs/demo` and
    `lecritique compare study-lambda --out runs/lambda`.
    """
    loaded = load_recipe(recipe)
    said = compare_section(loaded.compare)
    chosen_arms = list(said.arms) if arms is None else _words(arms, "--arms")
    chosen_seeds = list(said.seeds) if seeds is None else _numbers(seeds)
    limit = said.budget if budget is None else budget_of(budget)
    known = arm_names(loaded)
    for arm in chosen_arms:
        if arm not in known:
            where = "--arms" if arms is not None else "'compare.arms'"
            raise ConfigurationError(
                f"{where}: there is no arm '{arm}'.{nearest(arm, known)} Known: {', '.join(known)}."
            )
    from lecritique.runtime.comparison import plan, run
    from lecritique.runtime.threads import available_cores

    at_once, on_cores = jobs or said.jobs, cores or available_cores()
    if at_once > on_cores:
        console.print(f"warning: {at_once} runs at a time share {on_cores} cores and slow each other.", soft_wrap=True)
    target = out or Path("runs") / f"compare-{loaded.name}"
    comparison = plan(
        recipe,
        loaded,
        arms=chosen_arms,
        seeds=chosen_seeds,
        overrides=overrides or [],
        out=target,
        budget=limit,
    )
    console.print(
        f"{len(comparison.jobs)} runs to do, {len(comparison.finished)} done already; the base model earns "
        f"{number(comparison.record['base_reward'])}.",
        soft_wrap=True,
    )
    if comparison.jobs:
        try:
            with _Watch(comparison) as watch:
                codes = run(comparison, jobs=at_once, cores=on_cores, watch=watch.show)
        except KeyboardInterrupt:
            fail(f"interrupted; the same call with '--out {comparison.out}' goes on from there.", EXIT_INTERRUPTED)
    else:
        codes = run(comparison, jobs=at_once, cores=on_cores, watch=lambda running, ended: None)
    _finish(comparison, codes)


def _finish(comparison: Plan, codes: dict[str, int]) -> None:
    from lecritique.analysis.report import write_report
    from lecritique.analysis.summary import write_summary
    from lecritique.runtime.comparison import log_path

    summary = json.loads(write_summary(comparison.out).read_text(encoding="utf-8"))
    page = write_report(comparison.out)
    console.print(f"mean of the last steps, one figure per seed; base model {number(summary['base_reward'])}")
    print_table(summary_table(summary))
    print_table(spending_table(summary))
    console.print(f"report: {page}", soft_wrap=True)
    failed = {name: code for name, code in codes.items() if code != EXIT_OK}
    if failed:
        name, code = next(iter(failed.items()))
        job = next(job for job in comparison.jobs if job.name == name)
        log = log_path(comparison.out, job)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        fail(
            f"{len(failed)} of {len(codes)} runs failed; {name}: {lines[-1] if lines else 'no output'} (log: {log})",
            code if code > 0 else EXIT_ROLE_FAILED,
        )


def summary_table(summary: dict[str, Any]) -> Table:
    """Endpoints of each arm and seed."""
    table = Table()
    for heading in ("arm", "reward", "EV", "rho"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, columns in summary["arms"].items():
        table.add_row(
            arm,
            *(
                "  ".join(number(value) for value in columns[key])
                for key in ("reward_last", "explained_variance_last", "rho_last")
            ),
        )
    return table


def spending_table(summary: dict[str, Any]) -> Table:
    """What the runs of each arm spent, mean over seeds, and the mean reward over that."""
    from lecritique.analysis.arm_tests import area_means, mean_of

    table = Table()
    for heading in ("arm", "rollouts", "tokens", "FLOPs", "seconds", f"reward over {summary['area']['unit']}"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    areas = area_means(summary)
    for arm, spent in summary["spent"].items():
        rollouts, tokens, flops, seconds = (mean_of(spent[unit]) for unit in UNITS)
        table.add_row(
            arm,
            *("-" if mean is None else f"{mean:,.0f}" for mean in (rollouts, tokens)),
            "-" if flops is None else f"{flops:.2e}",
            number(seconds, 1),
            number(areas[arm]),
        )
    return table


class _Watch:
    """A live table of the runs on a terminal; a line per ended run elsewhere."""

    def __init__(self, comparison: Plan) -> None:
        self._comparison = comparison
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._told: set[str] = set()

    def __enter__(self) -> _Watch:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
        if self._live:
            self._live.update(self._table(running, ended))
            return
        for job in ended:
            if job.name not in self._told:
                self._told.add(job.name)
                console.print(f"{job.name}: {_state(job.path)}", soft_wrap=True)

    def _table(self, running: Sequence[Job], ended: Sequence[Job]) -> Table:
        table = Table(title=str(self._comparison.out), title_justify="left")
        for heading in ("run", "step", "reward", "EV", "rho", "tok/s"):
            table.add_column(heading, justify="left" if heading == "run" else "right")
        shown = [*self._comparison.finished, *ended, *running]
        for job in shown:
            row = _latest(job.path / "metrics.jsonl")
            step = "-" if row is None else _step(job, row)
            row = row or {}
            table.add_row(
                job.name,
                step,
                number(row.get("reward")),
                number(row.get("explained_variance")),
                number(row.get("rho")),
                number(row.get("tokens_per_second"), 0),
            )
        waiting = len(self._comparison.jobs) - len(running) - len(ended)
        if waiting:
            table.caption = f"{waiting} more to start"
        return table


def _step(job: Job, row: dict[str, Any]) -> str:
    """How far a run is: in steps, or in steps and the share of its budget."""
    from lecritique.runtime.spending import limits_of

    done, share = int(row["step"]) + 1, spent_share(row, limits_of(job.config.run.budget))
    return f"{done}/{job.config.run.steps}" if share is None else f"{done} ({100 * min(share, 1.0):.0f}%)"


def _latest(path: Path) -> dict[str, Any] | None:
    """The last whole line of a metrics file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    whole = [line for line in lines if line.endswith(b"\n") and line.startswith(b"{")]
    return json.loads(whole[-1]) if whole else None


def _state(path: Path) -> str:
    try:
        status = json.loads((path / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "did not start"
    row = _latest(path / "metrics.jsonl") or {}
    message = f" ({status['message']})" if status.get("message") else ""
    return (
        f"{status['state']} at step {status['step']}/{status['steps']}{message}, "
        f"reward {number(row.get('reward'))}, EV {number(row.get('explained_variance'))}"
    )


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigurationError(f"{option}: got {text!r}, expected names separated by commas.")
    if len(set(words)) < len(words):
        raise ConfigurationError(f"{option}: {text!r} names something twice.")
    return words


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in _words(text, "--seeds")]
    except ValueError as error:
        raise ConfigurationError(f"--seeds: got {text!r}, expected whole numbers separated by commas.") from error
    if len(set(numbers)) < len(numbers):
        raise ConfigurationError(f"--seeds: {text!r} names something twice.")
    return numbers
