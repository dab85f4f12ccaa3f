"""Publishing for readers that know no adapters, such as vLLM: each version is merged on its way into the store."""

from __future__ import annotations

from typing import Any

from lecritique.core.weights import WeightManifest
from lecritique.models.adapters import copied, load_own_weights, merged
from lecritique.models.weights import State, WeightStore


class MergingStore:
    """What a trainer of an adapted model publishes to, so that whole weights are what is there to open.

    Args:
        inner: takes the merged weights.
        model: adapted; only what is frozen in it is read.
    """

    def __init__(self, inner: WeightStore, model: Any) -> None:
        self._inner = inner
        self._model = copied(model)

    def put(self, role: str, state: State) -> WeightManifest:
        """Publish the plain model that an adapter's weights make.

        Raises:
            ValueError: they are of another adapter.
        """
        load_own_weights(self._model, state)
        return self._inner.put(role, merged(self._model).state_dict())

    def open(self, manifest: WeightManifest) -> State:
        """The merged weights."""
        return self._inner.open(manifest)

    def go_on_from(self, role: str, version: int) -> None:
        """As the inner store does."""
        self._inner.go_on_from(role, version)
