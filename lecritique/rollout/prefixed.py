"""An engine that plays recorded beginnings again, so that the environment and its verifier see whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lecritique.core.errors import EngineFailure
from lecritique.core.ids import GroupId
from lecritique.core.rollout import Completion, GenerateRequest
from lecritique.core.trajectory import Trajectory
from lecritique.core.weights import WeightManifest
from lecritique.rollout.engine import Engine


@dataclass(frozen=True, kw_only=True, eq=False)
class Beginning:
    """The first `actions` action tokens of a recorded episode, and all that stands between and before them."""

    trajectory: Trajectory
    actions: int

    def __post_init__(self) -> None:
        if not 0 <= self.actions < self.trajectory.action_tokens:
            raise ValueError(
                f"a beginning has at least 0 and fewer than all {self.trajectory.action_tokens} action tokens, got "
                f"{self.actions}"
            )

    @property
    def end(self) -> int:
        """Index of the first token that is not given: the action token that is sampled anew."""
        return int(np.flatnonzero(self.trajectory.action_mask)[self.actions])


class PrefixedEngine:
    """Answers from the recorded beginning of a group as long as it lasts; the engine behind it continues from there.

    Turns that the beginning holds in full are answered at once. The one that it ends in is completed by the engine, and
    the completion holds both parts: a driver cannot tell it from one that was sampled in one go. An environment that
    does not answer as it did when the beginning was recorded fails the rollout.

    Args:
        engine: continues; its weights are those that the beginnings were sampled from, or not.
        beginnings: of each group; other groups are played from their start.
    """

    def __init__(self, engine: Engine, beginnings: Mapping[GroupId, Beginning]) -> None:
        self._engine = engine
        self._beginnings = beginnings

    def submit(self, request: GenerateRequest) -> Future[Completion]:
        """Queue a request; what is recorded of its turn is in its completion."""
        beginning = self._beginnings.get(request.sequence_id.group)
        start = len(request.token_ids)
        if beginning is None or start > beginning.end:
            return self._engine.submit(request)
        own = beginning.trajectory
        if not np.array_equal(own.token_ids[:start], request.token_ids) or not own.action_mask[start]:
            return _failed(f"the environment did not answer {request.request_id} as it did when this was recorded")
        turn_end = start + int(np.append(own.action_mask[start:], False).argmin())
        if turn_end <= beginning.end:
            return _answered(_completion(request, own, start, turn_end))
        given = _completion(request, own, start, beginning.end)
        room = request.max_new_tokens - len(given.token_ids)
        if room < 1:
            return _answered(replace(given, finish_reason="length"))
        rest = replace(request, token_ids=own.token_ids[: beginning.end], max_new_tokens=room)
        whole: Future[Completion] = Future()
        self._engine.submit(rest).add_done_callback(lambda future: _join(given, future, whole))
        return whole

    def cancel(self, request_id: str) -> None:
        """Give up a request."""
        self._engine.cancel(request_id)

    def oldest_version(self, request_id: str) -> int | None:
        """The version of the request's first token that was sampled here."""
        return self._engine.oldest_version(request_id)

    def adopt(self, manifest: WeightManifest) -> None:
        """Continue with these weights."""
        self._engine.adopt(manifest)

    def advance(self) -> bool:
        """Let the engine work."""
        return self._engine.advance()

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


def _completion(request: GenerateRequest, own: Trajectory, start: int, end: int) -> Completion:
    """Recorded action tokens start..end - 1 of one turn."""
    ids: NDArray[np.int64] = own.token_ids[start:end]
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        logprobs=own.sampler_logprobs[start:end],
        policy_version=own.policy_version[start:end],
        finish_reason="stop",
    )


def _join(given: Completion, rest: Future[Completion], whole: Future[Completion]) -> None:
    if rest.cancelled():
        whole.cancel()
        return
    error = rest.exception()
    if error is not None:
        whole.set_exception(error)
        return
    sampled = rest.result()
    whole.set_result(
        replace(
            sampled,
            token_ids=np.concatenate([given.token_ids, sampled.token_ids]),
            logprobs=np.concatenate([given.logprobs, sampled.logprobs]),
            policy_version=np.concatenate([given.policy_version, sampled.policy_version]),
        )
    )


def _answered(completion: Completion) -> Future[Completion]:
    future: Future[Completion] = Future()
    future.set_result(completion)
    return future


def _failed(message: str) -> Future[Completion]:
    future: Future[Completion] = Future()
    future.set_exception(EngineFailure(message))
    return future
