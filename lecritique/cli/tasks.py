"""`lecritique tasks`: list, show, validate."""

from __future__ import annotations

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


@tasks.command("list")
def list_tasks() -> None:
    """Name the built-in tasks."""
    from lecritique.tasks.registry import options_model, task_names

    for name in task_names():
        text = (options_model(name).__doc__ or "").strip().splitlines()
        console.print(f"[bold]{name}[/bold]  {escape(text[0]) if text else ''}", soft_wrap=True, markup=True)
    console.print("Options and an example: lecritique tasks show NAME", soft_wrap=True)


@tasks.command("show")
def show_task(
    name: NameArgument,
    options: OptionArguments = None,
    row: Annotated[int, typer.Option(min=0, help="Which row to show.")] = 0,
) -> None:
    """Show a task's options, and one of its rows with its hidden reference."""
    from lecritique.tasks.protocol import checked_task
    from lecritique.tasks.registry import load_environment, options_model

    console.print("[bold]options[/bold]", markup=True)
    for key, field in options_model(name).model_fields.items():
        text = " ".join((field.description or "").split())
        console.print(f"  task.{key} = {field.default!r}  {text}", soft_wrap=True, markup=False)
    environment = load_environment(name, parsed(options))
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
    for key, value in task.metadata.items():
        console.print(f"  {key}: {value}", soft_wrap=True, markup=False)


@tasks.command("validate")
def validate_task(
    name: NameArgument,
    options: OptionArguments = None,
    items: Annotated[int, typer.Option(min=1, help="Rows whose gold answer is played.")] = 200,
    junk_items: Annotated[int, typer.Option(min=1, help="Rows on which every kind of junk is tried.")] = 20,
) -> None:
    """Check that gold answers pay and junk does not; exit code 2 when a promise is broken."""
    from lecritique.tasks.registry import load_environment
    from lecritique.tasks.validate import validate_environment

    report = validate_environment(load_environment(name, parsed(options)), items=items, junk_items=junk_items)
    for line in report.lines():
        console.print(line, soft_wrap=True, markup=False)
    raise typer.Exit(report.exit_code)


def parsed(options: list[str] | None) -> dict[str, Any]:
    """`key=value` arguments as a tree."""
    from lecritique.config.load import with_override

    tree: dict[str, Any] = {}
    for text in options or []:
        keys, value = parse_override(text)
        tree = with_override(tree, keys, value)
    return tree
