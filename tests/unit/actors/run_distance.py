"""How far two runs are apart that differ in the order of their sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lecritique.analysis.read import load_run
from tests.integration.run_files import CLOCKS, state_of

TIMING = (*CLOCKS, "utilisation_", "evaluator_latency", "engine_restarts")


def farthest(one: Path, other: Path) -> tuple[float, str]:
    """The largest relative difference between two runs' metrics and saved tensors, and where it is."""
    a, b = load_run(one), load_run(other)
    assert a.steps.tolist() == b.steps.tolist() and a.metrics.keys() == b.metrics.keys()
    found = [(0.0, "nowhere")]
    for name in a.metrics:
        if not name.startswith(TIMING):
            for x, y in zip(a.series(name), b.series(name), strict=True):
                if not (math.isnan(x) and math.isnan(y)):
                    found.append((abs(x - y) / max(abs(x), abs(y), 1e-3), name))
    tensors = dict(of_tensors(state_of(other)))
    for name, tensor in of_tensors(state_of(one)):
        size = max(float(tensor.abs().max()), 1e-12)
        found.append((float((tensor - tensors[name]).abs().max()) / size, name))
    return max(found)


def of_tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a tree that hold anything."""
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from of_tensors(below, f"{path}/{key}")
    elif isinstance(tree, torch.Tensor) and tree.numel():
        yield path, tree
