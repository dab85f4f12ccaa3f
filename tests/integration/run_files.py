"""What two runs left, compared to the last bit: state, metrics, sampled tokens, ledger. Clocks aside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from lecritique.analysis.read import load_run
from lecritique.runs.checkpoints import FOLDER, Checkpoints, load_checkpoint

CLOCKS = ("seconds", "tokens_per_second")


def differences(one: Path, other: Path) -> list[str]:
    """Where two finished runs differ; empty when they are the same run."""
    return [
        *tree_differences(state_of(one), state_of(other)),
        *_metric_differences(one, other),
        *_rollout_differences(one, other),
        *([] if outcomes(one) == outcomes(other) else ["ledger"]),
    ]


def state_of(run: Path) -> dict[str, Any]:
    """The tree of the newest checkpoint, which holds weights, optimizers, controllers, replay, versions."""
    newest = Checkpoints(run / FOLDER).latest()
    assert newest is not None, f"{run} has no checkpoint"
    tree = load_checkpoint(newest)
    del tree["config"]  # one of them may have been resumed with more steps
    tree["spending"].pop("seconds")  # a clock
    return tree


def tree_differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths at which two trees differ in a single bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted(one.keys() | other.keys())
        return [d for key in keys for d in tree_differences(one.get(key), other.get(key), f"{path}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for index, (a, b) in pairs for d in tree_differences(a, b, f"{path}/{index}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if one.dtype == other.dtype and one.equal(other) else [path]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if same else [path]
    return [] if type(one) is type(other) and (one == other or (one != one and other != other)) else [path]


def outcomes(run: Path) -> list[dict[str, Any]]:
    """The last outcome of every group, in order of the stream."""
    last: dict[int, dict[str, Any]] = {}
    for line in (run / "ledger.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut off by a kill
            continue
        last[row["position"]] = {key: value for key, value in row.items() if key != "resume"}
    return [last[position] for position in sorted(last)]


def _metric_differences(one: Path, other: Path) -> Iterator[str]:
    a, b = load_run(one), load_run(other)
    if a.steps.tolist() != b.steps.tolist():
        yield f"steps {a.steps.tolist()} and {b.steps.tolist()}"
        return
    for name in sorted(a.metrics.keys() | b.metrics.keys()):
        same = a.series(name).tobytes() == b.series(name).tobytes()
        if not same and not name.startswith(CLOCKS):
            yield f"metric {name}"


def _rollout_differences(one: Path, other: Path) -> Iterator[str]:
    names = [sorted(path.name for path in (run / "rollouts").glob("*.parquet")) for run in (one, other)]
    if names[0] != names[1]:
        yield f"rollout files {names[0]} and {names[1]}"
        return
    for name in names[0]:
        if not pq.read_table(one / "rollouts" / name).equals(pq.read_table(other / "rollouts" / name)):
            yield name
