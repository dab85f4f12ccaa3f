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
                found.append((apart(torch.tensor(x), torch.tensor(y), least=1e-3), name))
    tensors, others = dict(of_tensors(state_of(one))), dict(of_tensors(state_of(other)))
    assert tensors.keys() == others.keys(), sorted(tensors.keys() ^ others.keys())
    found += [(apart(tensor, others[name], least=1e-12), name) for name, tensor in tensors.items()]
    return max(found)


def apart(one: torch.Tensor, other: torch.Tensor, *, least: float) -> float:
    """The largest difference over the largest finite size, `least` or more; what is not finite must be alike."""
    assert one.shape == other.shape
    one, other = one.double(), other.double()
    differ = (one != other) & ~(one.isnan() & other.isnan())
    if not differ.any():
        return 0.0
    if not (one[differ].isfinite().all() and other[differ].isfinite().all()):
        return math.inf
    size = max(float(each[each.isfinite()].abs().max()) for each in (one, other))
    return float((one - other)[differ].abs().max()) / max(size, least)


def of_tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a tree that hold anything."""
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from of_tensors(below, f"{path}/{key}")
    elif isinstance(tree, torch.Tensor) and tree.numel():
        yield path, tree
