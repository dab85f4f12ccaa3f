"""The weight store: published versions of a role's weights. Nothing is updated in place under a reader."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import torch

from lecritique.core.weights import WeightManifest

State = Mapping[str, torch.Tensor]


class WeightStore(Protocol):
    """Takes weights of a role, hands out manifests, opens them."""

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish: the version is the role's previous one plus one, the first is 0."""
        ...

    def open(self, manifest: WeightManifest) -> State:
        """The published weights."""
        ...


class MemoryWeightStore:
    """Keeps the latest version of each role in memory."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[WeightManifest, State]] = {}

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish a copy of `state`."""
        copied = {name: tensor.detach().clone() for name, tensor in state.items()}
        previous = self._states.get(role)
        version = previous[0].version + 1 if previous else 0
        manifest = WeightManifest(role=role, version=version, digest=_digest(copied))
        self._states[role] = (manifest, copied)
        return manifest

    def open(self, manifest: WeightManifest) -> State:
        """The weights of `manifest`; KeyError when a later version has replaced them."""
        held = self._states.get(manifest.role)
        if held is None or held[0] != manifest:
            raise KeyError(f"weights of {manifest.role} version {manifest.version} are no longer held")
        return held[1]


def _digest(state: State) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in state.items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
