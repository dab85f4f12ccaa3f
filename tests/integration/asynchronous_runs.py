"""Asynchronous runs of a few steps: what the tests configure, drive and look into."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lecritique.core.rollout import GenerateRequest
from lecritique.rollout.simulated import SimulatedEngine
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.asynchronous import Orchestrator, Step
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.ledger import Ledger
from lecritique.runtime.local_runtime import LocalRuntime
from lecritique.runtime.training import train
from tests.integration.short_runs import small_config

ASYNCHRONOUS = "runtime.loop='asynchronous'"


def asynchronous_parts(*overrides: str, arm: str = "pvf") -> Parts:
    """The roles of a small asynchronous run; later overrides win."""
    return build(load_base(small_config(ASYNCHRONOUS, "run.save_rollouts_every=0", *overrides, arm=arm)))


def simulated(parts: Parts, latency_seconds: Callable[[GenerateRequest], float]) -> Parts:
    """The parts with an engine that waits instead of computing."""
    stop = min(parts.renderer.stop_ids)
    digits = parts.tokenizer.encode("1234", add_special_tokens=False)
    engine = SimulatedEngine(latency_seconds=latency_seconds, tokens=lambda request: [*digits * 4, stop])
    parts.engine.close()
    engine.adopt(parts.learner.policy.publish())
    return replace(parts, engine=engine)


@dataclass
class Driven:
    """What an orchestrator did."""

    steps: list[Step] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)


def drive(parts: Parts, *, pause: Callable[[], None] = lambda: None) -> Driven:
    """Run the parts to their last step, nothing written."""
    driven = Driven()
    ledger = Ledger()
    ledger.write_with(lambda record: driven.outcomes.append(dict(record)))
    runtime = LocalRuntime(parts, pause_critic=pause)
    Orchestrator(runtime, ledger, on_step=driven.steps.append).run()
    assert not ledger.open
    return driven


def recorded(path: Path, *overrides: str, arm: str) -> tuple[Parts, list[dict[str, Any]]]:
    """A whole run in a directory: its parts afterwards and its metric rows."""
    base = load_base(small_config("run.steps=3", "runtime.dtype='float64'", *overrides, arm=arm))
    parts = build(base)
    train(parts, RunDirectory.create(path, base.config))
    return parts, [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights_of(parts: Parts) -> dict[str, torch.Tensor]:
    """All weights that the run trained."""
    weights = {f"policy.{name}": w for name, w in parts.learner.policy.model.state_dict().items()}
    if parts.learner.values is not None:
        weights |= {f"critic.{name}": w for name, w in parts.learner.values.trainer.model.state_dict().items()}
    return weights
