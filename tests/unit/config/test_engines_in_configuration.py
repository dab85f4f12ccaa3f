"""vLLM is refused where its log-probs would be of another distribution than the trainer's."""

from __future__ import annotations

import pytest

from lecritique.config.engines import Embedded, Vllm
from lecritique.config.load import Recipe, compose
from lecritique.config.resolve import Facts, resolve
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError

RECIPE = Recipe(name="r", text="", tree={"task": {"type": "sudoku", "size": 4}}, arms={}, default_arm=None)


def resolved(*overrides: str, device: str = "cpu") -> RunConfig:
    facts = Facts(device=device, context_length=128, reward_range=(0.0, 1.0))
    return resolve(compose(RECIPE, arm="mean", overrides=overrides), facts)


def test_the_embedded_engine_is_the_default_and_a_word_chooses_the_other():
    assert resolved().runtime.engine == Embedded()
    chosen = resolved("runtime.engine.type=vllm", "runtime.engine.replicas=2")
    assert chosen.runtime.engine == Vllm(replicas=2)
    assert RunConfig.model_validate_json(chosen.model_dump_json()) == chosen


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("runtime.dtype=float64", "'runtime.dtype' = 'float64'"),
        ("runtime.device=mps", "'runtime.device' = 'cpu' or 'cuda', got 'mps'"),
        ("sampling.temperature=2.5", "'sampling.temperature' = 2.5"),
        ("eval.temperature=0.001", "'eval.temperature' = 0.001"),
        ("sampling.top_k=5", "'sampling.top_k' must be off"),
    ],
)
def test_what_would_not_match_is_refused_in_one_sentence(override, said):
    with pytest.raises(ConfigurationError) as caught:
        resolved("runtime.engine.type=vllm", override)
    message = str(caught.value)
    assert said in message and message.endswith(".") and "\n" not in message
    if "top_k" not in override:
        resolved(override)


def test_a_loss_that_corrects_for_the_cut_allows_it():
    assert resolved("runtime.engine.type=vllm", "policy.loss.type=ppo", "sampling.top_p=0.9").sampling.top_p == 0.9


def test_numbers_out_of_range_are_refused():
    for override in ("replicas=0", "gpu_memory_utilization=1.0", "cpu_cache_gib=0", "no_such=1"):
        with pytest.raises(ConfigurationError):
            resolved("runtime.engine.type=vllm", f"runtime.engine.{override}")


def test_embedded_takes_no_key_of_vllm():
    with pytest.raises(ConfigurationError, match="replicas"):
        resolved("runtime.engine.type=embedded", "runtime.engine.replicas=2")


@pytest.mark.parametrize(
    ("device", "override", "said"),
    [
        ("cpu", "restarts=1", "'runtime.engine.transfer' = 'ipc' shares a GPU's memory, and 'runtime.device' is 'cpu'"),
        ("cuda", "replicas=2", "'runtime.engine.replicas' must be 1, got 2"),
        ("cuda", "tensor_parallel=2", "'runtime.engine.tensor_parallel' must be 1, got 2"),
        ("cuda", "first_gpu=1", "'runtime.engine.first_gpu' must be 0, got 1"),
    ],
)
def test_shared_gpu_memory_is_refused_where_the_replica_is_not_on_the_trainers_gpu(device, override, said):
    keys = ("runtime.engine.type=vllm", "runtime.engine.transfer=ipc", f"runtime.engine.{override}")
    with pytest.raises(ConfigurationError) as caught:
        resolved(*keys, device=device)
    assert said in str(caught.value)
    assert resolved(*keys[:2], device="cuda").runtime.engine == Vllm(transfer="ipc")
