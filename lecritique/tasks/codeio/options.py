"""Options of CodeIO."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lecritique.tasks.options import TaskOptions

Direction = Literal["output", "input"]

OUTPUT_TEMPLATE = """{description}

{specification}

```python
{code}
```

main_solution is called with these arguments, as a JSON object:
{given}

What does it return? Reason without running it, then end with the value as JSON between <answer> and </answer>."""

INPUT_TEMPLATE = """{description}

{specification}

```python
{code}
```

main_solution returned this value, as JSON:
{given}

For which arguments does it return that? Any that do are right. Reason without running it, then end with all
arguments as one JSON object between <answer> and </answer>."""


class CodeIOOptions(TaskOptions):
    """Predict what a program returns, or an input for which it returns a given value."""

    direction: Literal["both", "output", "input"] = "both"
    """What is asked for: the `output` for an input, an `input` for an output, or `both` in turn."""

    programs: str | None = None
    """A JSONL file with the fields of reasoning-gym's codeio data. Default: the programs bundled with reasoning-gym."""

    file: str | None = None
    """Items frozen by `lecritique tasks freeze codeio`; then nothing is run to make them."""

    rows: int | None = Field(default=None, ge=1)
    """Number of items. Default: 200, or all of `file`."""

    max_program_chars: int = Field(default=4000, ge=50)
    """Programs with longer code are left out."""

    max_value_chars: int = Field(default=500, ge=2, le=10_000)
    """Items whose input or output is longer as JSON are left out."""

    tolerance: float = Field(default=1e-6, ge=0, lt=0.01)
    """Relative difference up to which numbers are the same."""

    run_seconds: float = Field(default=2.0, ge=0.1, le=60)
    """Limit of one run of a program on a predicted input; an input that takes longer is wrong."""

    output_template: str = OUTPUT_TEMPLATE
    """Prompt that asks for an output, with {description}, {specification}, {code} and {given}."""

    input_template: str = INPUT_TEMPLATE
    """Prompt that asks for an input, with the same fields."""

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that are asked for."""
        return ("output", "input") if self.direction == "both" else (self.direction,)

    def template(self, direction: Direction) -> str:
        """The prompt of a direction."""
        return self.output_template if direction == "output" else self.input_template

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.file is not None and self.programs is not None:
            raise ValueError("expected at most one of task.file and task.programs")
        for direction in self.directions:
            key, template = f"task.{direction}_template", self.template(direction)
            fields = dict.fromkeys(("description", "specification", "code", "given"), "x")
            try:
                template.format(**fields)
            except (KeyError, IndexError, ValueError, AttributeError) as error:
                raise ValueError(f"{key} is no template with {', '.join(fields)} as its fields: {error!r}") from None
            if "{given}" not in template:
                raise ValueError(f"{key} lacks the field {{given}}")
        return self
