"""A key-value cache whose rows start at position 0 and have their own lengths.

A row's token t stands at cache index t whatever else is in the batch, so rows join, leave and grow
without being moved or padded on the left. What a padded query writes beyond a row's length is
overwritten before any real token can attend to it.

Shape letters: R rows of the store, B rows of one forward pass, q new tokens, C capacity.
"""

from __future__ import annotations

import torch


class RowCache:
    """Keys and values of R rows for every layer, grown as needed."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.capacity = 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens a row."""
        if capacity <= self.capacity:
            return
        self.capacity = -(-capacity // 64) * 64
        self._layers = [(self._grown(keys), self._grown(values)) for keys, values in self._layers]

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = old.new_zeros(old.shape[0], old.shape[1], self.capacity, old.shape[3])
        new[:, :, : old.shape[2]] = old
        return new

    def forward_view(self, rows_B: torch.Tensor, positions_Bq: torch.Tensor) -> ForwardView:
        """A cache object for one forward pass of new tokens at `positions_Bq` of the given rows."""
        return ForwardView(self, rows_B, positions_Bq)

    def layer(self, index: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, heads, C, width] of a layer, made at its first use."""
        while len(self._layers) <= index:
            shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
            self._layers.append((like.new_zeros(shape), like.new_zeros(shape)))
        return self._layers[index]

    def copy_rows(self, source_B: torch.Tensor, target_B: torch.Tensor) -> None:
        """Copy whole rows, such as the shared prompt of a group."""
        for keys, values in self._layers:
            keys[target_B] = keys[source_B]
            values[target_B] = values[source_B]


class ForwardView:
    """What transformers calls a cache, for one forward pass: stores new keys, returns the rows' keys so far."""

    is_compileable = False

    def __init__(self, store: RowCache, rows_B: torch.Tensor, positions_Bq: torch.Tensor) -> None:
        self._store = store
        self._rows_B = rows_B
        self._positions_Bq = positions_Bq
        self._length = int(positions_Bq.max()) + 1
        store.reserve(self._length)
        whole = len(rows_B) == store.rows and bool((rows_B == torch.arange(store.rows, device=rows_B.device)).all())
        self._whole = whole

    def attention_mask(self) -> torch.Tensor:
        """True where a query may look, [B, 1, q, length]: at every earlier position and its own."""
        index = torch.arange(self._length, device=self._positions_Bq.device)
        return index[None, None, None, :] <= self._positions_Bq[:, None, :, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values [B, heads, q, width] and return those of positions 0..length-1."""
        all_keys, all_values = self._store.layer(layer_idx, keys)
        rows, positions = self._rows_B[:, None], self._positions_Bq
        all_keys[rows, :, positions] = keys.transpose(1, 2)
        all_values[rows, :, positions] = values.transpose(1, 2)
        if self._whole:
            return all_keys[:, :, : self._length], all_values[:, :, : self._length]
        return all_keys[self._rows_B, :, : self._length], all_values[self._rows_B, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this pass, as transformers asks for; positions are given explicitly, so 0 serves."""
        return 0
