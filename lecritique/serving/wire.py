"""What goes over the wire: JSON or msgpack, in and out, and what a request may say. Everything in it is hostile.

Numbers are float64 in both forms and arrive with the bits that they left with.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lecritique.core.errors import ConfigurationError, LecritiqueError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import ContextInsertion, Trajectory, ValueRequest

Form = Literal["json", "msgpack"]
TYPES: dict[Form, str] = {"json": "application/json", "msgpack": "application/msgpack"}
_FORMS: dict[str, Form] = {
    "application/json": "json", "application/msgpack": "msgpack", "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}  # fmt: skip
_LARGEST_ID = 2**31 - 1
TokenIds = list[Annotated[int, Field(ge=0, le=_LARGEST_ID)]]


class BadRequest(LecritiqueError):
    """A request that cannot be answered. `status` is its HTTP status."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Context(_Strict):
    """Token ids that the critic reads before index `position` of the sequence, and the policy did not."""

    position: Annotated[int, Field(ge=0, le=_LARGEST_ID)]
    token_ids: TokenIds


class SequenceBody(_Strict):
    """One sequence, and which of its tokens' values are wanted: `mask`, or all from index `from` on (1)."""

    token_ids: Annotated[TokenIds, Field(min_length=1)]
    mask: list[bool] | None = None
    first: Annotated[int, Field(ge=1, le=_LARGEST_ID)] | None = Field(default=None, alias="from")
    context: Context | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, given: Any) -> Any:
        return {"token_ids": given} if isinstance(given, list) else given


class ValuesBody(_Strict):
    """Body of POST /v1/values."""

    sequences: list[SequenceBody]


class ReloadBody(_Strict):
    """Body of POST /v1/reload; without a path the newest one is read again."""

    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


def form_of(content_type: str) -> Form:
    """The form that a Content-Type names.

    Raises:
        BadRequest: 415, neither JSON nor msgpack.
    """
    name = content_type.split(";")[0].strip().lower()
    if name not in _FORMS:
        raise BadRequest(
            f"the content type is {name[:60]!r}, expected application/json or application/msgpack.", status=415
        )
    return _FORMS[name]


def answer_form(accept: str, asked_in: Form) -> Form:
    """The form that an Accept header names first, else that of the request."""
    for part in accept.split(","):
        name = part.split(";")[0].strip().lower()
        if name in _FORMS:
            return _FORMS[name]
    return asked_in


def decode(body: bytes, form: Form) -> Any:
    """The content of a body.

    Raises:
        BadRequest: it is not what its form says.
    """
    try:
        if form == "json":
            return json.loads(body, parse_constant=_no_constant)
        return msgpack().unpackb(body, raw=False, strict_map_key=True)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest(f"the body nests too deeply for {form}.") from None
    except Exception as error:  # decoders of hostile bytes raise errors of many kinds
        raise BadRequest(f"the body is not {form}: {_one_line(error)}.") from None


def encode(content: Mapping[str, Any], form: Form) -> bytes:
    """The bytes of an answer."""
    if form == "json":
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return msgpack().packb(content)  # type: ignore[no-any-return]


def msgpack() -> Any:
    """The package of that name.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module("msgpack")
    except ImportError as error:
        raise ConfigurationError("msgpack needs the package msgpack: pip install 'lecritique[serve]'") from error


def checked(kind: type[BaseModel], content: Any) -> Any:
    """`content` as a `kind`.

    Raises:
        BadRequest: with the first fault, in one sentence.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the body"
        got = "" if first["type"] in ("missing", "extra_forbidden") else f", got {_shown(first['input'])}"
        raise BadRequest(f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{got}.") from None
    except RecursionError:
        raise BadRequest("the body nests too deeply.") from None


def value_requests(body: ValuesBody, *, vocabulary: int) -> list[ValueRequest]:
    """The sequences as the evaluator takes them.

    Raises:
        BadRequest: a sequence whose parts do not fit together, or an id outside the vocabulary.
    """
    return [_value_request(index, each, vocabulary) for index, each in enumerate(body.sequences)]


def _value_request(index: int, sequence: SequenceBody, vocabulary: int) -> ValueRequest:
    ids = _ids(f"sequences.{index}.token_ids", sequence.token_ids, vocabulary)
    length, context = len(ids), None
    if sequence.context is not None:
        context_ids = _ids(f"sequences.{index}.context.token_ids", sequence.context.token_ids, vocabulary)
        if sequence.context.position > length:
            raise BadRequest(
                f"sequences.{index}.context.position: {sequence.context.position} is behind the end of a sequence of "
                f"{length} tokens."
            )
        context = ContextInsertion(position=sequence.context.position, token_ids=context_ids)
    return ValueRequest(trajectory=_trajectory(index, ids, _wanted(index, sequence, length)), context=context)


def _wanted(index: int, sequence: SequenceBody, length: int) -> np.ndarray:
    if sequence.mask is None:
        return np.arange(length) >= (sequence.first or 1)
    if sequence.first is not None:
        raise BadRequest(f"sequences.{index}: 'mask' and 'from' both say which values are wanted, expected one.")
    if len(sequence.mask) != length:
        raise BadRequest(f"sequences.{index}.mask: {len(sequence.mask)} entries for {length} tokens.")
    if sequence.mask[0]:
        raise BadRequest(f"sequences.{index}.mask: the first token has no state before it, so no value.")
    return np.array(sequence.mask, dtype=bool)


def _ids(where: str, token_ids: list[int], vocabulary: int) -> np.ndarray:
    ids = np.array(token_ids, dtype=np.int64)
    outside = np.flatnonzero(ids >= vocabulary)
    if len(outside):
        at = int(outside[0])
        raise BadRequest(f"{where}.{at}: id {ids[at]} is outside the vocabulary of {vocabulary} ids.")
    return ids


def _trajectory(index: int, ids: np.ndarray, wanted: np.ndarray) -> Trajectory:
    """What a sampler would have known stays empty: values depend on ids alone."""
    return Trajectory(
        rollout_id=RolloutId(GroupId(0, 0), index),
        token_ids=ids,
        action_mask=wanted,
        sampler_logprobs=np.zeros(len(ids)),
        turn_index=np.zeros(len(ids), dtype=np.int64),
        policy_version=np.full(len(ids), -1),
        episode_return=0.0,
        truncated=False,
    )


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"the body is not json: {name} is not a JSON number.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def _shown(value: Any) -> str:
    """A value of any size and kind in a few characters."""
    if isinstance(value, bool | int | float | str) or value is None:
        text = repr(value) if not isinstance(value, int) or abs(value) <= _LARGEST_ID else "a larger number"
        return text if len(text) <= 60 else f"{text[:60]}..."
    return {"list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
