"""What behaves like vLLM in a replica's process, without a model: every token is the number that the weights hold."""

from __future__ import annotations

import sys
import time
from types import ModuleType

from safetensors import safe_open

from lecritique.core.rollout import GenerateRequest
from lecritique.rollout import vllm_server
from lecritique.rollout.vllm_messages import ReplicaSettings, WeightFile, Weights
from lecritique.rollout.vllm_server import Sampled

STEP_SECONDS = 0.002
# A prompt with this token ends whoever decodes it.
POISON = 666


class FakeDecoder:
    """A token a step for each request, `max_length` tokens of a sequence at most."""

    def __init__(self, settings: ReplicaSettings) -> None:
        if settings.rows == 13:
            raise RuntimeError("13 rows are too many\nfor this machine")
        self._max_length = settings.max_length
        self._open: dict[str, tuple[GenerateRequest, int]] = {}
        self._number = -1

    def add(self, request: GenerateRequest) -> None:
        if len(request.token_ids) >= self._max_length:
            raise ValueError(f"{len(request.token_ids)} tokens are too many")
        self._open[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> None:
        del self._open[request_id]

    def step(self) -> list[Sampled]:
        if any(POISON in request.token_ids for request, _ in self._open.values()):
            raise RuntimeError("poisoned")
        time.sleep(STEP_SECONDS)
        return [self._token(request_id) for request_id in list(self._open)]

    def load(self, weights: Weights) -> None:
        assert isinstance(weights, WeightFile)
        with safe_open(weights.path, framework="np") as opened:
            self._number = int(opened.get_tensor(weights.names[0])[0])

    def close(self) -> None:
        print("closed in order")

    def _token(self, request_id: str) -> Sampled:
        request, sampled = self._open[request_id]
        self._open[request_id] = (request, sampled + 1)
        reason = "stop" if self._number in request.stop_ids else None
        if reason is None and sampled + 1 >= request.max_new_tokens:
            reason = "length"
        if reason:
            del self._open[request_id]
        return Sampled(request_id=request_id, token_ids=[self._number], logprobs=[-0.5], finish_reason=reason)


if __name__ == "__main__":
    library = ModuleType("lecritique.rollout.vllm_library")
    library.VllmDecoder = FakeDecoder  # type: ignore[attr-defined]
    sys.modules["lecritique.rollout.vllm_library"] = library
    vllm_server.main(int(sys.argv[1]))
