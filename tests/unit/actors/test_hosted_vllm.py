"""An actor that holds vLLM leaves its GPUs to the replica: what it loads for the first weights is on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lecritique.config.schema import RunConfig
from lecritique.models.weights import MemoryWeightStore
from lecritique.runtime import engines, hosting
from lecritique.runtime.build import load_base
from tests.integration.short_runs import small_config


def resolved(*overrides: str) -> RunConfig:
    gpus = (f"runtime.actors.{role}.gpus=1" for role in ("engines", "evaluators", "policy", "critic"))
    return load_base(small_config("runtime.type=ray", *gpus, *overrides, arm="mean")).config


@pytest.mark.parametrize(("engine", "device"), [("vllm", "cpu"), ("embedded", "cuda")])
def test_only_an_engine_that_decodes_by_itself_has_the_model_on_the_gpu(monkeypatch, tmp_path, engine, device) -> None:
    config = resolved(f"runtime.engine.type={engine}")
    assert config.runtime.device == "cuda"
    loaded: list[str] = []

    def configured_model(config: RunConfig, device: str) -> Any:
        loaded.append(device)
        return SimpleNamespace(model=None)

    monkeypatch.setattr(hosting, "configured_model", configured_model)
    monkeypatch.setattr(hosting, "rollout_engine", lambda trained, own, store: SimpleNamespace(config=own))
    host = hosting.engine_host(config.model_dump_json(), str(tmp_path))
    assert loaded == [device]
    # Everything else is computed where the run says.
    assert host._engine.config.runtime.device == "cuda"  # type: ignore[attr-defined]


def test_a_replica_computes_on_the_actors_gpus_though_its_first_weights_are_on_the_cpu(monkeypatch):
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        engines, "VllmEngine", lambda model, store, settings, **rest: made.update(vars(settings), **rest)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    base = load_base(small_config(arm="mean"))
    assert base.language.model.device.type == "cpu"
    engines.vllm_engine(base.language.model, MemoryWeightStore(), resolved("runtime.engine.type=vllm"), max_length=64)
    assert made["device"] == "cuda" and made["environments"] == [{"CUDA_VISIBLE_DEVICES": "3"}]
