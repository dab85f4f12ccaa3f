"""No option is accepted and then not read: short runs record every field of the configuration that they read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from lecritique.actors.seats import cluster_settings
from lecritique.config.base import Config
from lecritique.config.load import Recipe, compose
from lecritique.config.schema import RunConfig
from lecritique.models.loading import load_causal_lm
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.vllm_messages import ReplicaSettings
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.engines import vllm_engine
from lecritique.runtime.training import train
from tests.integration.short_runs import small_config
from tests.unit.actors.thread_cluster import ThreadCluster, run_on_actors

# What a class of a union is chosen by, and the arm's name, which is for people.
NOT_OPTIONS = {"type", "preset"}
# Checks and defaults are no use: what only they read would not change a run. A lambda is made into a number there, and
# what a teacher is told is found.
NO_USE = {"resolve.py", "load.py", "explain.py", "test_options_used.py"}
USE = {("resolve.py", "gae_lambda"), ("resolve.py", "teacher_content")}
RUNS = (
    ("mean", ("estimator.scale=std", "policy.loss.type=reinforce", 'run.sinks=["tensorboard"]')),
    ("mean", ("estimator.overlong={type='soft',limit=18,cache=6}", "policy.loss.type=dapo")),
    ("pvf", ("critic.loss.type=mse", "critic.value_target_lambda={alpha=0.2}", "critic.replay.max_uses=1")),
    ("tether", ("critic.loss.type=categorical", "estimator.gae_lambda={retained=0.4,length=20}", "sampling.top_k=0")),
    ("tether", ("critic.loss.type=hl_gauss", "policy.loss.type=ppo", "policy.minibatch_size=4")),
    ("value", ("critic.loss.type=clipped_mse", "estimator.gae_lambda={bias_weight=1.0}")),
    ("evpo", ("critic.warmup=discard",)),
    ("vaspo", ("policy.teacher.content=answer",)),
    ("rlsd", ()),
    ("opsd", ()),
    ("dapo", ()),
    ("mean", ("run.eval_every=2", "eval.k=2", "eval.rows=2", "data.evaluation_fraction=0.3")),
    ("pvf", ("model.adapter.type=lora", "critic.backbone.type=shared", "runtime.recompute_activations=true")),
    ("value", ("runtime.loop=asynchronous",)),
)
# The example of an own task has every context, and prompts of different lengths.
OF_OWN_TASK = (
    ("critic.context.type=rubric", "data.max_prompt_tokens=28", "data.on_long_prompt=drop"),
    ("critic.context.type=env", "data.evaluation_fraction=0.2"),
    ("critic.context={type='siblings',max_tokens=400,on_overflow='trim_context'}", "sampling.max_total_tokens=100"),
    ("critic.context={type='siblings',max_tokens=90,on_overflow='skip'}", "sampling.max_total_tokens=100"),
)


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_of(argument)


def reachable(model: type[BaseModel]) -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    todo = [model]
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            todo += [below for field in current.model_fields.values() for below in models_of(field.annotation)]
    return found


def owner(model: type[BaseModel], name: str) -> str:
    """The class that declares the field, so that a base class's field counts once."""
    return next(base.__name__ for base in reversed(model.__mro__) if name in getattr(base, "__annotations__", {}))


FIELDS = sorted(
    {
        (owner(model, name), name)
        for model in reachable(RunConfig)
        for name in model.model_fields
        if name not in NOT_OPTIONS
    }
)


@pytest.fixture(scope="module")
def read(tmp_path_factory) -> set[tuple[str, str]]:
    """(class, field) of everything that short runs of four arms read."""
    seen: set[tuple[str, str]] = set()

    def recording(self: Config, name: str) -> Any:
        if name in type(self).model_fields:
            code = sys._getframe(1).f_code
            file = Path(code.co_filename).name
            if file not in NO_USE or (file, code.co_name) in USE:
                seen.add((owner(type(self), name), name))
        return object.__getattribute__(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "__getattribute__", recording, raising=False)
        configs = [(arm, small_config(*overrides, arm=arm)) for arm, overrides in RUNS]
        configs += [("own", own_task_config(*overrides)) for overrides in OF_OWN_TASK]
        for arm, config in configs:
            base = load_base(config)
            directory = RunDirectory.create(tmp_path_factory.mktemp(arm) / "run", base.config)
            train(build(base), directory)
        start_vllm()
        start_actors(tmp_path_factory.mktemp("actors") / "run")
    return seen


def start_vllm() -> None:
    """As a run does it, but for the processes."""

    class Silent:
        def __init__(self, settings: ReplicaSettings, **rest: Any) -> None: ...

        failure = None
        wait_until_ready = send = stop = lambda self, *rest: None
        ask_to_stop = stop

    config = small_config("runtime.engine.type=vllm")
    model = load_causal_lm(config.model.name).model
    vllm_engine(model, MemoryWeightStore(), config, max_length=64, start=Silent).close()


def start_actors(path: Path) -> None:
    """A run on actors, which are threads here, and what Ray would be asked."""
    config = small_config("runtime.type=ray", "run.steps=1", arm="pvf")
    run_on_actors(path, config, ThreadCluster())
    cluster_settings(config)


def own_task_config(*overrides: str) -> RunConfig:
    tree = {
        "run": {"steps": 2}, "task": {"type": "examples.own_task:SortWords", "rows": 16},
        "rollout": {"batch_size": 8, "group_size": 4}, "estimator": {"type": "value"},
        "critic": {"warmup_updates": 0}, "runtime": {"loop": "synchronous"},
    }  # fmt: skip
    return compose(Recipe(name="own", text="", tree=tree, arms={}, default_arm=None), overrides=overrides)


def test_the_walk_reaches_the_whole_configuration():
    names = {model.__name__ for model in reachable(RunConfig)}
    assert {"RunSection", "Tether", "GaeLambda", "OptimizerConfig", "Dppo", "Categorical", "ReferenceContext"} <= names
    assert len(FIELDS) > 45


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_every_option_is_read(read, model, name):
    assert (model, name) in read, f"nothing reads {model}.{name}"


def test_every_option_has_a_description():
    undocumented = [
        f"{model.__name__}.{name}"
        for model in reachable(RunConfig)
        for name, field in model.model_fields.items()
        if name not in NOT_OPTIONS and model is not RunConfig and not (field.description or "").strip()
    ]
    assert undocumented == []


def test_reading_is_told_from_not_reading(read):
    assert ("RunConfig", "task") in read and ("Dppo", "no_such_option") not in read
    assert not any(name in NOT_OPTIONS and model == "RunSection" for model, name in read)
