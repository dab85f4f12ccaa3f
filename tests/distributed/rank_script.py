"""What the tests of training on several processes look at: run as a script, it writes what it saw into a folder.

One process loads everything, plays, trains alone, and forks two that train the same in shards. Nothing is judged here.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import PolicyBatch
from lecritique.distributed import checkpoints as checkpoints_module
from lecritique.distributed.checkpoints import ShardedCheckpoints, load_sharded
from lecritique.distributed.groups import Place, process_group
from lecritique.distributed.sharding import shard
from lecritique.distributed.together import Together, micro_batches_of
from lecritique.distributed.weights import FileWeightStore, GatheredStore
from lecritique.models.ranks import whole
from lecritique.models.scoring import token_row
from lecritique.models.weights import state_digest
from lecritique.runs.checkpoints import Checkpoints
from tests.distributed.rank_trainings import (
    CPU,
    MAX_TOKENS,
    POLICY_LOSSES,
    VALUE_LOSSES,
    Batches,
    forked,
    played,
    policy_metrics,
    policy_trainer,
    tiny,
    value_metrics,
    value_trainer,
)

STEPS, BEFORE, AFTER = 20, 2, 2
ADAPTERS = ("lora ppo", "lora")
LONG_POLICY, LONG_VALUES = ("dppo", "ppo"), ("bce",)


def trained(batches: Batches, **how: Any) -> dict[str, Any]:
    """The long trainings in float32, and the other losses for two steps in float64."""
    seen: dict[str, Any] = {"float32": {}, "float64": {}}
    for name in LONG_POLICY:
        seen["float32"][name] = policy_metrics(policy_trainer(name, batches.config, **how), batches, STEPS)
    for name in LONG_VALUES:
        seen["float32"][name] = value_metrics(value_trainer(name, **how), batches, STEPS)
    for name in sorted(POLICY_LOSSES.keys() - LONG_POLICY):
        one = policy_trainer(name, batches.config, dtype=torch.float64, **how)
        seen["float64"][name] = policy_metrics(one, batches, 2)
    for name in sorted(VALUE_LOSSES.keys() - LONG_VALUES):
        seen["float64"][name] = value_metrics(value_trainer(name, dtype=torch.float64, **how), batches, 2)
    return seen


def tree_of(policy: Any, critic: Any) -> dict[str, Any]:
    """What is saved: both trainers, with something beside the weights."""
    return {"policy": policy.state(), "critic": critic.state(), "beside": {"steps": BEFORE, "column": np.arange(3)}}


def go_on(policy: Any, critic: Any, batches: Batches) -> dict[str, Any]:
    """The steps after a checkpoint."""
    rows = [dict(policy.step(batches.policy[2 + step])) for step in range(AFTER)]
    return {"policy": rows, "critic": [dict(critic.update(batches.values[2 + step])) for step in range(AFTER)]}


def saved_and_gone_on(
    batches: Batches, save: Any, cases: tuple[str, str] = ("ppo", "mse"), **how: Any
) -> dict[str, Any]:
    """Two steps, a checkpoint, two more."""
    policy, critic = policy_trainer(cases[0], batches.config, **how), value_trainer(cases[1], **how)
    policy_metrics(policy, batches, BEFORE)
    value_metrics(critic, batches, BEFORE)
    save(tree_of(policy, critic))
    return go_on(policy, critic, batches)


def valued(batches: Batches, **how: Any) -> dict[str, Any]:
    """Values of a batch's rows after an update, with all weights trained and with an adapter."""
    rows = [
        token_row(trajectory, context)
        for sample in batches.values[0].samples
        for trajectory, context in zip(sample.trajectories, sample.contexts, strict=True)
    ]
    seen = {}
    for name in ("bce", "lora"):
        critic = value_trainer(name, dtype=torch.float64, **how)
        critic.update(batches.values[0])
        seen[name] = [column.tolist() for column in critic.values(rows)]
    return seen


def resumed(
    batches: Batches, tree: dict[str, Any], cases: tuple[str, str] = ("ppo", "mse"), **how: Any
) -> dict[str, Any]:
    """The two steps after a checkpoint, with new trainers."""
    policy, critic = policy_trainer(cases[0], batches.config, **how), value_trainer(cases[1], **how)
    policy.restore(tree["policy"])
    critic.restore(tree["critic"])
    return {**go_on(policy, critic, batches), "beside": [tree["beside"]["steps"], tree["beside"]["column"].tolist()]}


def one_row_off(batch: PolicyBatch) -> PolicyBatch:
    """The batch with one rollout whose sampler thought its tokens impossible: the loss of whoever reads it is none."""
    first = batch.members[0]
    column = np.where(first.trajectory.action_mask, -1e6, 0.0)
    broken = dataclasses.replace(first, trajectory=dataclasses.replace(first.trajectory, sampler_logprobs=column))
    return dataclasses.replace(batch, members=(broken, *batch.members[1:]))


def precision(batches: Batches, ranks: Together, mesh: DeviceMesh) -> dict[str, Any]:
    """A step computed in bfloat16 that is too small for bfloat16 weights."""

    def prepare(model: Any) -> None:
        shard(model, mesh, compute_dtype=torch.bfloat16)

    seen: dict[str, Any] = {}
    for name, one, step in (
        ("policy", policy_trainer("dppo", batches.config, ranks=ranks, prepare=prepare, learning_rate=1e-6), "policy"),
        ("critic", value_trainer("bce", ranks=ranks, prepare=prepare), "values"),
    ):
        before = {key: whole(tensor).clone() for key, tensor in one.model.state_dict().items()}
        batch = getattr(batches, step)[0]
        metrics = one.step(batch) if name == "policy" else one.update(batch)
        after = {key: whole(tensor) for key, tensor in one.model.state_dict().items()}
        parameters = list(one.model.parameters())
        moments = one.state()["optimizer"]["first_moments"].values()
        seen[name] = {
            "metrics": dict(metrics),
            "weights": sorted({str(tensor.dtype) for tensor in after.values()}),
            "gradients": sorted({str(parameter.grad.dtype) for parameter in parameters}),
            "moments": sorted({str(moment.dtype) for moment in moments}),
            "moved": sum(int((after[key] != before[key]).sum()) for key in after),
            "moved_in_bfloat16": sum(int((after[key].bfloat16() != before[key].bfloat16()).sum()) for key in after),
            "held": sum(parameter.to_local().numel() for parameter in parameters),
            "all": sum(parameter.numel() for parameter in parameters),
        }
    return seen


def recomputed(batches: Batches, ranks: Together, mesh: DeviceMesh) -> dict[str, Any]:
    """A step in float64 whose activations are computed again, how often each layer was, and the usual step."""
    calls = []

    def prepare(model: Any) -> None:
        for layer in model.get_decoder().layers:
            layer.register_forward_hook(lambda *_: calls.append("outside"))
            layer.mlp.register_forward_pre_hook(lambda *_: calls.append("inside"))
        shard(model, mesh, recompute=True)

    how = {"ranks": ranks, "dtype": torch.float64}
    again = policy_trainer("dppo", batches.config, prepare=prepare, **how).step(batches.policy[0])
    usual = policy_trainer("dppo", batches.config, prepare=lambda m: shard(m, mesh), **how).step(batches.policy[0])
    return {
        "again": dict(again),
        "usual": dict(usual),
        "inside": calls.count("inside"),
        "outside": calls.count("outside"),
    }


def diverged(batches: Batches, **how: Any) -> dict[str, Any]:
    """What each process says of a loss that is not finite on one of them, and whether weights moved."""
    one = policy_trainer("dppo", batches.config, **how)
    before = state_digest({name: whole(tensor) for name, tensor in one.model.state_dict().items()})
    try:
        one.step(one_row_off(batches.policy[0]))
        message = "none"
    except DivergenceError as error:
        message = str(error)
    after = state_digest({name: whole(tensor) for name, tensor in one.model.state_dict().items()})
    return {"message": message, "same": before == after, "version": one.version}


def published(batches: Batches, folder: Path, ranks: Together, **how: Any) -> dict[str, Any]:
    """Versions 0 and 1 of policy and critic from shards, and what rank 0 finds in the files."""
    files = FileWeightStore(folder) if not ranks.rank else None
    store = GatheredStore(files, ranks)
    policy = policy_trainer("dppo", batches.config, ranks=ranks, store=store, **how)
    critic = value_trainer("bce", ranks=ranks, store=store, **how)
    manifests = [policy.publish(), critic.publish()]
    policy.step(batches.policy[0])
    critic.update(batches.values[0])
    manifests += [policy.publish(), critic.publish()]
    trained = [state_digest({n: whole(t) for n, t in one.model.state_dict().items()}) for one in (policy, critic)]
    opened = [state_digest(files.open(manifest)) for manifest in manifests] if files else []
    return {
        "manifests": [dataclasses.asdict(manifest) for manifest in manifests], "opened": opened, "trained": trained,
    }  # fmt: skip


def unsaved(batches: Batches, folder: Path, ranks: Together, failing: int, **how: Any) -> dict[str, Any]:
    """A checkpoint that one process cannot write, after one that all could; and one more after it."""
    critic = value_trainer("mse", ranks=ranks, **how)
    every = ShardedCheckpoints(folder, ranks)
    first = every.save(1, {"critic": critic.state()})

    class Full(checkpoints_module.HuggingFaceStorageWriter):  # type: ignore[name-defined]
        def write_data(self, *_: Any) -> Any:
            raise OSError("no space left on device")

    writer = checkpoints_module.HuggingFaceStorageWriter
    try:
        if ranks.rank == failing:
            checkpoints_module.HuggingFaceStorageWriter = Full  # type: ignore[misc, attr-defined]
        every.save(2, {"critic": critic.state()})
        problem = ""
    except OSError as error:
        problem = str(error)
    finally:
        checkpoints_module.HuggingFaceStorageWriter = writer  # type: ignore[misc, attr-defined]
    latest = Checkpoints(folder).latest()
    third = every.save(3, {"critic": critic.state()})
    left = sorted(path.name for path in folder.iterdir())
    return {"problem": problem, "latest": latest == first, "third": third.name, "left": left}


def idle_passes(batch: PolicyBatch) -> int:
    """Forward passes that one process makes only because the other has one more."""
    lengths = [token_row(member.trajectory).read_tokens for member in batch.members]
    every = micro_batches_of(lengths, max_tokens=MAX_TOKENS, ranks=2)
    return sum(not micro for batches in every for micro in batches)


def in_ranks(rank: int, batches: Batches, folder: Path) -> dict[str, Any]:
    """Everything that two processes do."""
    with process_group(Place(rank=rank, ranks=2, local_rank=rank), CPU, meeting=folder / "meeting"):
        mesh, ranks = init_device_mesh("cpu", (2,)), Together(CPU)
        how: dict[str, Any] = {"ranks": ranks, "prepare": lambda model: shard(model, mesh)}
        every = ShardedCheckpoints(folder / "two", ranks)
        seen = {"trained": trained(batches, **how)}
        seen["uninterrupted"] = saved_and_gone_on(batches, lambda tree: every.save(BEFORE, tree), **how)
        latest = Checkpoints(folder / "two").latest()
        assert latest is not None
        seen["two_on_two"] = resumed(batches, load_sharded(latest, mesh), **how)
        of_one = Checkpoints(folder / "one").latest()
        assert of_one is not None
        seen["one_on_two"] = resumed(batches, load_sharded(of_one, mesh), **how)
        adapters = ShardedCheckpoints(folder / "adapters", ranks)
        seen["adapters_uninterrupted"] = saved_and_gone_on(
            batches, lambda tree: adapters.save(BEFORE, tree), ADAPTERS, **how
        )
        saved = Checkpoints(folder / "adapters").latest()
        assert saved is not None
        seen["adapters_two_on_two"] = resumed(batches, load_sharded(saved, mesh), ADAPTERS, **how)
        seen["values"] = valued(batches, **how)
        seen["precision"] = precision(batches, ranks, mesh)
        seen["recomputed"] = recomputed(batches, ranks, mesh)
        seen["diverged"] = diverged(batches, **how)
        seen["published"] = published(batches, folder / "weights", ranks, prepare=how["prepare"])
        seen["unsaved"] = [
            unsaved(batches, folder / f"unsaved{failing}", ranks, failing, prepare=how["prepare"]) for failing in (0, 1)
        ]
        seen["told"] = [ranks.told(None if rank else text) for text in ("", "ä\n" * 1000)]
        seen["largest"] = ranks.largest([float(rank), -float(rank), float("-inf")])
        return seen


def main(folder: Path) -> None:
    """Write `seen.json`: what one process saw, and what each of two did."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float64):  # once, for all processes
        tiny(dtype)
    batches = played()
    alone: dict[str, Any] = {"trained": trained(batches)}
    own = Checkpoints(folder / "one")
    alone["uninterrupted"] = saved_and_gone_on(batches, lambda tree: own.save(BEFORE, tree))
    alone["diverged"] = diverged(batches)
    ranks = forked(2, folder / "answers", lambda rank: in_ranks(rank, batches, folder))
    of_two = Checkpoints(folder / "two").latest()
    assert of_two is not None
    alone["two_on_one"] = resumed(batches, load_sharded(of_two))
    of_adapters = Checkpoints(folder / "adapters").latest()
    assert of_adapters is not None
    alone["adapters"] = [load_sharded(of_adapters)[role]["weights"] for role in ("policy", "critic")]
    alone["adapters"] = [{name: list(tensor.shape) for name, tensor in each.items()} for each in alone["adapters"]]
    alone["adapters_two_on_one"] = resumed(batches, load_sharded(of_adapters), ADAPTERS)
    alone["values"] = valued(batches)
    alone["tiny"] = state_digest(tiny(torch.float32).state_dict())
    alone["idle"] = [idle_passes(batch) for batch in batches.policy]
    (folder / "seen.json").write_text(json.dumps({"alone": alone, "ranks": ranks}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
