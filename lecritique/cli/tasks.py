"""`lecritique tasks`: list, show, validate, freeze."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from lecritique.cli.output import console
from lecritique.config.load import parse_override

tasks = typer.Typer(
    no_args_is_help=True, help="The environments: list them, look at a row, check that they score right."
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A built-in task, or module:Class for your own.")]
OptionArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="The task's own options, such as size=9.")
]

# Columns narrower than a third of this are hard to read.
NARROW = 100


@tasks.command("list")
def list_tasks() -> None:
    """Name the built-in tasks."""
    from lecritique.tasks.registry import class_of, task_names

    for name in task_names():
        text = (class_of(name).__doc__ or "").strip().splitlines()
        console.print(f"[bold]{name}[/bold]  {escape(text[0]) if text else ''}", soft_wrap=True, markup=True)
    console.print("Options and an example: lecritique tasks show NAME", soft_wrap=True)


@tasks.command("show")
def show_task(
    name: NameArgument,
    options: OptionArguments = None,
    row: Annotated[int, typer.Option(min=0, help="Which row to show.")] = 0,
    context: Annotated[
        bool, typer.Option("--context", help="Show what policy, critic and teacher see, for each context of the task.")
    ] = False,
    placement: Annotated[str, typer.Option(help="With --context: system_prefix or user_suffix.")] = "system_prefix",
    model: Annotated[str, typer.Option(help="With --context: whose chat template renders it.")] = "tiny",
) -> None:
    """Show a task's options, and one of its rows with its hidden reference.

    Example: `lecritique tasks show sudoku size=9 --context`.
    """
    from lecritique.tasks.registry import load_environment, options_model

    fields = options_model(name).model_fields
    console.print("[bold]options[/bold]", markup=True)
    for key, field in fields.items():
        text = " ".join((field.description or "").split())
        console.print(f"  task.{key} = {field.default!r}  {text}", soft_wrap=True, markup=False)
    _show_row(load_environment(name, parsed(options)), name, row)
    if context:
        _show_contexts(load_environment(name, parsed(options)), row, placement, model)


def _show_row(environment: Any, name: str, row: int) -> None:
    from lecritique.tasks.protocol import checked_task

    if row >= len(environment):
        from lecritique.core.errors import ConfigurationError

        raise ConfigurationError(f"--row {row}: task '{name}' has the rows 0 to {len(environment) - 1}.")
    task = checked_task(environment, row)
    console.print(f"[bold]row {row} of {len(environment)}[/bold]  {escape(task.task_id)}", soft_wrap=True, markup=True)
    for message in task.messages:
        console.print(f"  {message.role}: {message.content}", soft_wrap=True, markup=False)
    console.print(f"  a perfect policy: {environment.gold(task, task.messages)}", soft_wrap=True, markup=False)
    if task.reference is not None:
        console.print(f"  reference answer (hidden): {task.reference.answer}", soft_wrap=True, markup=False)
        if task.reference.solution is not None:
            console.print(f"  reference solution (hidden): {task.reference.solution}", soft_wrap=True, markup=False)
    for name, text in (("rubric", task.rubric), ("env", task.env)):
        if text is not None:
            console.print(f"  {name} (hidden): {text}", soft_wrap=True, markup=False)
    for key, value in task.metadata.items():
        console.print(f"  {key}: {value}", soft_wrap=True, markup=False)


def _show_contexts(environment: Any, row: int, placement: str, model: str) -> None:
    from lecritique.core.errors import ConfigurationError
    from lecritique.critic.views import example_siblings, supported_contexts, view
    from lecritique.models.chat import ChatRenderer
    from lecritique.models.loading import load_tokenizer
    from lecritique.tasks.protocol import checked_task

    if placement not in ("system_prefix", "user_suffix"):
        raise ConfigurationError(f"--placement: got {placement!r}, expected system_prefix or user_suffix.")
    renderer, task = ChatRenderer(load_tokenizer(model)), checked_task(environment, row)
    siblings = example_siblings(environment.gold(task, task.messages), environment.reward_range)
    for title, context in supported_contexts(task, placement):
        seen = view(task, context, renderer, siblings)
        console.print()
        console.print(f"[bold]context {title}[/bold]", markup=True)
        print_side_by_side({"policy": seen.policy, "critic": seen.critic, "teacher": seen.teacher})


def print_side_by_side(columns: dict[str, str]) -> None:
    """Texts beside each other, or below each other where the terminal is too narrow to read columns."""
    from rich.table import Table
    from rich.text import Text

    if console.width < NARROW:
        for name, text in columns.items():
            console.print(Text(f"{name}:", style="bold"))
            console.print(Text(visible(text)), soft_wrap=False)
        return
    table = Table(expand=True)
    for name in columns:
        table.add_column(name, ratio=1, overflow="fold")
    table.add_row(*(Text(visible(text)) for text in columns.values()))
    console.print(table)


def visible(text: str) -> str:
    """`text` with control characters, which a terminal would obey, as escapes."""
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@tasks.command("validate")
def validate_task(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A built-in task, or module:Class.")] = None,
    options: OptionArguments = None,
    every: Annotated[bool, typer.Option("--all", help="Every built-in task, each in two processes.")] = False,
    items: Annotated[int, typer.Option(min=1, help="Rows whose gold answer is played.")] = 200,
    junk_items: Annotated[int, typer.Option(min=1, help="Rows on which every kind of junk is tried.")] = 20,
) -> None:
    """Check that gold answers pay and junk does not; exit code 2 when a promise is broken."""
    from lecritique.core.errors import ConfigurationError
    from lecritique.tasks.registry import load_environment
    from lecritique.tasks.validate import validate_environment

    if every == (name is not None):
        raise ConfigurationError("lecritique tasks validate: expected the NAME of one task, or --all and no name.")
    if name is None:
        raise typer.Exit(_validate_all(items, junk_items))
    report = validate_environment(load_environment(name, parsed(options)), items=items, junk_items=junk_items)
    for line in report.lines():
        console.print(line, soft_wrap=True, markup=False)
    raise typer.Exit(report.exit_code)


def _validate_all(items: int, junk_items: int) -> int:
    """Print an outcome for every task; returns the exit code."""
    from lecritique.core.errors import EXIT_CONFIGURATION, EXIT_OK
    from lecritique.tasks.validate_all import all_jobs, validate_all

    counts = {"ok": 0, "broken": 0, "not validated": 0}
    for outcome in validate_all(all_jobs(), items=items, junk_items=junk_items):
        for line in outcome.lines():
            console.print(line, soft_wrap=True, markup=False)
        counts[outcome.verdict] += 1
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), markup=False)
    return EXIT_CONFIGURATION if counts["broken"] else EXIT_OK


@tasks.command("freeze")
def freeze_task(
    name: NameArgument,
    out: Annotated[Path, typer.Option("--out", help="The JSONL file to write; it must not exist yet.")],
    options: OptionArguments = None,
    seed: Annotated[int, typer.Option(min=0, help="Data seed where the options give none.")] = 0,
) -> None:
    """Write a task's items to a file that the option `file` loads: the same rows in every process and version.

    Example: `lecritique tasks freeze reasoning_gym dataset=word_ladder rows=2000 --out word_ladder.jsonl`.
    """
    from lecritique.core.errors import ConfigurationError
    from lecritique.tasks.frozen import write_frozen
    from lecritique.tasks.registry import class_of, resolve_options

    freeze = getattr(class_of(name), "frozen", None)
    if freeze is None:
        raise ConfigurationError(f"task '{name}' has no items to freeze: its rows are the same in every process.")
    resolved = resolve_options(name, parsed(options), seed=seed)
    count = write_frozen(out, name, freeze(resolved), resolved.model_dump(exclude_none=True))
    console.print(f"{count} items of {name} written to {out}; use them with task.file", soft_wrap=True, markup=False)


def parsed(options: list[str] | None) -> dict[str, Any]:
    """`key=value` arguments as a tree."""
    from lecritique.config.load import with_override

    tree: dict[str, Any] = {}
    for text in options or []:
        keys, value = parse_override(text)
        tree = with_override(tree, keys, value)
    return tree
