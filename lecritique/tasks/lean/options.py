"""Options of the Lean environment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lecritique.tasks.options import TaskOptions

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class PlainLean(BaseModel):
    """`lean --json --stdin`: one process for each check."""

    model_config = _STRICT

    type: Literal["lean"]
    """Which kind of back end."""

    command: list[str] = Field(default=["lake", "env", "lean"], min_length=1)
    """How Lean is called; `--json --stdin` and a memory limit are added."""

    directory: str | None = None
    """Working directory: your Lake project with Mathlib built. Default: where the run started."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables to add, such as LEAN_PATH."""


class ReplLean(BaseModel):
    """The REPL of leanprover-community: processes that keep the imports of the header."""

    model_config = _STRICT

    type: Literal["repl"]
    """Which kind of back end."""

    command: list[str] = Field(default=["lake", "exe", "repl"], min_length=1)
    """How the REPL is called."""

    directory: str | None = None
    """Working directory: your Lake project with REPL and Mathlib built. Default: where the run started."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables to add."""

    checks_per_process: int = Field(default=200, ge=1)
    """A process is replaced after so many checks: its memory grows."""

    start_seconds: float = Field(default=300.0, gt=0)
    """Wall limit of start and header (importing Mathlib takes tens of seconds)."""


class KiminaLean(BaseModel):
    """A Kimina Lean server; the memory limit is the server's own."""

    model_config = _STRICT

    type: Literal["kimina"]
    """Which kind of back end."""

    url: str = Field(pattern="^https?://")
    """Where the server is, such as http://localhost:8000; `/api/check` is added."""

    api_key_variable: str | None = None
    """Environment variable with the API key, if one is needed."""


Backend = Annotated[PlainLean | ReplLean | KiminaLean, Field(discriminator="type")]


class LeanOptions(TaskOptions):
    """Which theorems, how they are checked, and how often the policy may try."""

    file: str
    """A .jsonl or .parquet file with one theorem a row, or a folder of such files."""

    statement_column: str = "formal_statement"
    """Column with the theorem, up to its `:=`; a `sorry` or `by` behind it is cut."""

    name_column: str | None = None
    """Column with a stable name for the row. Default: the theorem's own name."""

    header_column: str | None = None
    """Column with what stands in front of the theorem (imports, opens). Default: `header` for all rows."""

    informal_column: str | None = None
    """Column with the statement in words, shown to the policy. Default: none is shown."""

    proof_column: str | None = None
    """Column with a proof, the reference for the critic. Default: there is none."""

    header: str = "import Mathlib\n"
    """What stands in front of every theorem where `header_column` is not given."""

    rows: int | None = Field(default=None, ge=1)
    """Use only the first so many rows. Default: all."""

    attempts: int = Field(default=3, ge=1)
    """Turns of an episode; each but the last is answered with the compiler's messages."""

    backend: Backend
    """What checks proofs: `lean`, `repl` or `kimina`."""

    workers: int = Field(default=2, ge=1, le=256)
    """Most checks at the same time."""

    limit_seconds: float = Field(default=60.0, gt=0)
    """Wall limit of one check."""

    memory_mebibytes: int = Field(default=8192, ge=64)
    """Memory limit of a Lean process, files that it maps not counted."""

    feedback_characters: int = Field(default=2000, ge=100)
    """Compiler messages are cut to so many characters."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.header_column is not None and "header" in self.model_fields_set:
            raise ValueError("task.header and task.header_column were both given, expected one of them")
        return self
