"""Trainings on one process and on two, on batches that the bundled model really played.

Run as a script it trains every case on one process, starts two by fork, trains the same cases on them in shards, and
writes what it saw as JSON. One script for all tests: everything heavy is loaded once.
"""

from __future__ import annotations

import copy
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lecritique.config.adapters import LoraAdapter, LoraBackbone
from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Bce, ClippedMse, Dapo, Dppo, Mse, Opsd, Ppo
from lecritique.config.schema import PolicySection, RunConfig
from lecritique.config.teachers import EmaTeacher, Fusion, SnapshotTeacher
from lecritique.core.trajectory import PolicyBatch, ValueBatch
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.adapters import adapted
from lecritique.models.loading import load_causal_lm
from lecritique.models.ranks import Ranks
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore, WeightStore
from lecritique.policy.teacher import SelfTeacher
from lecritique.policy.trainer import PolicyTrainer
from lecritique.runtime.synchronous import train_step
from tests.integration.short_runs import small_parts

MAX_TOKENS = 60
CPU = torch.device("cpu")
POLICY_LOSSES = {
    "dppo": PolicySection(loss=Dppo()),
    "ppo": PolicySection(loss=Ppo()),
    "dapo": PolicySection(loss=Dapo(), epochs=2, whiten=True),
    "opsd": PolicySection(loss=Opsd(), teacher=EmaTeacher(content="answer")),
    "fusion": PolicySection(loss=Ppo(), modulation=Fusion(), teacher=SnapshotTeacher(content="answer", rescore=True)),
    "lora": PolicySection(loss=Opsd(), teacher=EmaTeacher(content="answer")),
    "lora ppo": PolicySection(loss=Ppo()),
}
VALUE_LOSSES = {"bce": Bce(), "mse": Mse(), "clipped_mse": ClippedMse(eps_v=0.02), "lora": Bce()}
Prepare = Callable[[Any], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """What policy and critic trained on in the steps of a real run, and its configuration."""

    config: RunConfig
    policy: list[PolicyBatch]
    values: list[ValueBatch]


def tiny(dtype: torch.dtype) -> Any:
    """A bundled model of one's own."""
    return copy.deepcopy(_loaded(dtype))


@cache
def _loaded(dtype: torch.dtype) -> Any:
    return load_causal_lm("tiny", dtype=dtype).model


def played(steps: int = 4) -> Batches:
    """Batches of a privileged value function on Sudoku: advantages of many sizes, responses of many lengths."""
    parts = small_parts(
        f"run.steps={steps}", "task.min_empty=2", "task.max_empty=9", "policy.loss.type=ppo",
        "policy.modulation.type=fusion", "rollout.batch_size=4", "critic.replay.refill_size=4", arm="pvf",
    )  # fmt: skip
    seen = Batches(config=parts.config, policy=[], values=[])
    assert parts.learner.values is not None
    _spy(parts.learner.policy, "step", seen.policy)
    _spy(parts.learner.values.trainer, "update", seen.values)
    for step in range(steps):
        train_step(parts, step)
    parts.engine.close()
    # One of the batches has a row too few to give both of two processes as many.
    short, few = seen.policy[1], seen.values[1]
    seen.policy[1] = PolicyBatch.of(short.members[:3], trained_version=short.trained_version)
    seen.values[1] = ValueBatch.of(few.samples[:3])
    return seen


def policy_trainer(
    name: str, config: RunConfig, *, ranks: Ranks | None = None, prepare: Prepare | None = None,
    store: WeightStore | None = None, dtype: torch.dtype = torch.float32, learning_rate: float | None = None,
) -> PolicyTrainer:  # fmt: skip
    """A policy trainer of one case; `prepare` shards the model."""
    model = tiny(dtype)
    if name.startswith("lora"):
        model = adapted(model, LoraAdapter(rank=4), seed=1)
    rate = learning_rate or config.policy.optimizer.learning_rate
    section = POLICY_LOSSES[name].model_copy(update={"optimizer": OptimizerConfig(learning_rate=rate)})
    teacher = None
    if name in ("opsd", "fusion", "lora"):
        teacher = SelfTeacher(
            model, section.teacher, temperature=config.sampling.temperature, max_tokens=MAX_TOKENS, context_length=4096
        )
    if prepare is not None:
        prepare(model)
    return PolicyTrainer(
        model,
        section,
        store or MemoryWeightStore(),
        temperature=config.sampling.temperature,
        max_tokens=MAX_TOKENS,
        teacher=teacher,
        ranks=ranks,
    )


def value_trainer(
    name: str, *, ranks: Ranks | None = None, prepare: Prepare | None = None, store: WeightStore | None = None,
    dtype: torch.dtype = torch.float32,
) -> ValueTrainer:  # fmt: skip
    """A value trainer of one case."""
    model = ValueModel.from_policy(tiny(dtype), VALUE_LOSSES[name], seed=3)
    if name == "lora":
        model = model.with_adapter(LoraBackbone(rank=4), seed=2)
    if prepare is not None:
        prepare(model)
    config = OptimizerConfig(learning_rate=1e-4)
    return ValueTrainer(model, config, store or MemoryWeightStore(), max_tokens=MAX_TOKENS, ranks=ranks)


def policy_metrics(one: PolicyTrainer, batches: Batches, steps: int) -> list[dict[str, float]]:
    """Train on the batches, again and again."""
    return [dict(one.step(batches.policy[step % len(batches.policy)])) for step in range(steps)]


def value_metrics(one: ValueTrainer, batches: Batches, steps: int) -> list[dict[str, float]]:
    """Train on the batches, again and again."""
    return [dict(one.update(batches.values[step % len(batches.values)])) for step in range(steps)]


def forked(ranks: int, folder: Path, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives on each of so many processes, through JSON; they end with this call.

    Raises:
        RuntimeError: one of them failed; the text is its trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            code = 1
            try:
                answer = work(rank)
                (folder / f"{rank}.json").write_text(json.dumps(answer), encoding="utf-8")
                code = 0
            except BaseException:
                (folder / f"{rank}.failed").write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(code)
        children.append(child)
    _wait(children)
    failures = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.failed"))]
    if failures:
        raise RuntimeError("\n".join(failures))
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def _wait(children: list[int]) -> None:
    """Until all have ended; when one fails the others, which would wait for it, are ended."""
    left = set(children)
    while left:
        child, status = os.wait()
        left.discard(child)
        if os.waitstatus_to_exitcode(status):
            for other in left:
                os.kill(other, 9)


def _spy(owner: Any, name: str, seen: list[Any]) -> None:
    inner = getattr(owner, name)

    def spied(batch: Any, **options: Any) -> Any:
        seen.append(batch)
        return inner(batch, **options)

    setattr(owner, name, spied)
