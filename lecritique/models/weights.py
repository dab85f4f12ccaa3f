"""The weight store: published versions of a role's weights. Nothing is updated in place under a reader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
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

    def go_on_from(self, role: str, version: int) -> None:
        """Let the role's next `put` be `version`: that of a run that is resumed."""
        ...


class MemoryWeightStore:
    """Keeps the latest version of each role in memory."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[WeightManifest, State]] = {}
        self._next: dict[str, int] = {}
        self._unopened: set[str] = set()
        self._tell: Callable[[WeightManifest], None] = lambda manifest: None

    def watch(self, tell: Callable[[WeightManifest], None]) -> None:
        """Have `tell` called with every version that is published from now on, on the publisher's thread."""
        self._tell = tell

    def only_name(self, role: str) -> None:
        """Keep no copy of the role's versions from now on: nobody opens them, and they are still told of."""
        self._unopened.add(role)
        self._states.pop(role, None)

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish a copy of `state`."""
        keeps = role not in self._unopened
        published = {name: tensor.detach().clone() for name, tensor in state.items()} if keeps else state
        version = self._next.get(role, 0)
        manifest = WeightManifest(role=role, version=version, digest=state_digest(published))
        if keeps:
            self._states[role] = (manifest, published)
        self._next[role] = version + 1
        self._tell(manifest)
        return manifest

    def open(self, manifest: WeightManifest) -> State:
        """The weights of `manifest`; KeyError when a later version has replaced them, or versions are only named."""
        held = self._states.get(manifest.role)
        if held is None or held[0] != manifest:
            raise KeyError(f"weights of {manifest.role} version {manifest.version} are no longer held")
        return held[1]

    def go_on_from(self, role: str, version: int) -> None:
        """Let the role's next `put` be `version`; what is held is forgotten, so that no number means two weights."""
        if version < 0:
            raise ValueError(f"weights of {role} cannot go on from version {version}, expected 0 or more")
        self._states.pop(role, None)
        self._next[role] = version


def state_digest(state: State) -> str:
    """A name of the tensors' bytes: equal weights have the same."""
    # SHA-256 because processors have instructions for it: twice as fast as BLAKE2b, once for each published version.
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]
