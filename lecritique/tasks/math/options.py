"""Options of the math environment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lecritique.tasks.options import TaskOptions

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class EndpointJudge(BaseModel):
    """A judge behind an OpenAI-compatible endpoint."""

    model_config = _STRICT

    type: Literal["endpoint"]
    """Which kind of judge."""

    url: str = Field(pattern="^https?://")
    """Where the API begins, such as http://localhost:8000/v1; `/chat/completions` is added."""

    model: str = Field(min_length=1)
    """The name of the model there."""

    api_key_variable: str | None = None
    """Environment variable with the API key, if one is needed."""

    limit_seconds: float = Field(default=60.0, gt=0)
    """Wall limit of one request."""

    attempts: int = Field(default=3, ge=1)
    """How often a request that fails is sent."""

    max_tokens: int = Field(default=1024, ge=1)
    """Token limit of the verdict."""


class LocalJudge(BaseModel):
    """A judge in this process, decoded greedily."""

    model_config = _STRICT

    type: Literal["local"]
    """Which kind of judge."""

    model: str = Field(min_length=1)
    """As `model.name`: a folder, or an id on the Hugging Face hub."""

    device: str = "cpu"
    """Where it runs."""

    max_tokens: int = Field(default=1024, ge=1)
    """Token limit of the verdict."""


class MathOptions(TaskOptions):
    """Which problems, how they are asked, and how answers are compared."""

    file: str | None = None
    """A .jsonl or .parquet file, or a folder of such files. Give this or `dataset`."""

    dataset: str | None = None
    """A Hugging Face data set: hub id or local folder (needs the extra datasets). Give this or `file`."""

    dataset_configuration: str | None = None
    """The configuration of the data set, if it has several."""

    split: str = "train"
    """The split of `dataset`."""

    question_column: str = "question"
    """Column with the problem."""

    answer_column: str = "final_answer"
    """Column with the gold answer: text, a number, a list of them, or a solution that ends in a box."""

    solution_columns: list[str] = Field(default_factory=list)
    """Columns with worked solutions, in order of preference; the first that is not blank is the reference's."""

    rows: int | None = Field(default=None, ge=1)
    """Use only the first so many rows. Default: all."""

    repeated: Literal["error", "drop"] = "error"
    """A question that occurred before is an error, or left out."""

    prompt_template: str = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    """The user message; `{question}` is filled in, other braces stay as they are."""

    system_prompt: str | None = None
    """A system message in front, if any."""

    require_box: bool = True
    """Only a boxed answer counts. Without a box, `false` lets math-verify look for an answer in the response."""

    limit_seconds: float = Field(default=5.0, gt=0, le=600)
    """Wall limit of one comparison; an answer that takes longer is wrong."""

    workers: int = Field(default=2, ge=1, le=256)
    """Most comparisons at the same time, each in a process of its own."""

    judge: Annotated[EndpointJudge | LocalJudge, Field(discriminator="type")] | None = None
    """For evaluation: a model that is asked about answers that math-verify rejects. Default: none."""

    @property
    def source(self) -> str:
        """File or data set."""
        return self.file if self.file is not None else self.dataset or ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.file is None) == (self.dataset is None):
            raise ValueError("expected exactly one of task.file and task.dataset")
        if self.file is not None and self.dataset_configuration is not None:
            raise ValueError("task.dataset_configuration goes with task.dataset, got task.file")
        if self.file is not None and self.split != "train":
            raise ValueError("task.split goes with task.dataset, got task.file")
        if "{question}" not in self.prompt_template:
            raise ValueError(f"task.prompt_template = {self.prompt_template!r} lacks {{question}}")
        return self
