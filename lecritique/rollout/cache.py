"""A key-value cache whose rows start at position 0 and have their own lengths.

A row's token t stands at cache index t whatever else is in the batch, so rows join, leave and grow
without being moved or padded on the left. What a padded query writes beyond a row's length is
overwritten before any real token can attend to it.

Shape letters: R rows of the store, B rows of one forward pass, q new tokens, C capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def forward_view(self, rows: Sequence[int], starts: Sequence[int], width: int) -> ForwardView:
        """A cache object for one forward pass of `width` new tokens, from index `starts` on, of each of the rows."""
        self.reserve(max(starts) + width)
        return ForwardView(self, rows, starts, width)

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

    def swap_rows(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Let rows change places with as many others, pair by pair."""
        for layer in self._layers:
            for store in layer:
                store[[*some, *others]] = store[[*others, *some]]


class ForwardView:
    """What transformers calls a cache, for one forward pass: stores new keys, returns the rows' keys so far.

    Where rows lie side by side and start at one index, as they do while a batch decodes in step, keys are written and
    handed out without copies.
    """

    is_compileable = False

    def __init__(self, store: RowCache, rows: Sequence[int], starts: Sequence[int], width: int) -> None:
        self._store = store
        self._width = width
        self._length = max(starts) + width
        first, count = rows[0], len(rows)
        self._rows = slice(first, first + count) if list(rows) == list(range(first, first + count)) else list(rows)
        self._starts = list(starts)
        self._level = min(starts) == max(starts)

    def positions(self, device: torch.device) -> torch.Tensor:
        """Where the new tokens stand, [B, q]; [1, q] where all rows start at one index."""
        starts = self._starts[:1] if self._level else self._starts
        return torch.tensor(starts, device=device)[:, None] + torch.arange(self._width, device=device)

    def attention_mask(self, device: torch.device) -> torch.Tensor | None:
        """True where a query may look, [B, 1, q, length]: at every earlier position and its own.

        None where the plain causal rule says the same, which leaves transformers the faster kernels.
        """
        if self._level and (self._width == 1 or self._width == self._length):
            return None
        index = torch.arange(self._length, device=device)
        mask_Bqk = index <= self.positions(device)[..., None]
        return mask_Bqk.expand(len(self._starts), -1, -1)[:, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values [B, heads, q, width] and return those of positions 0..length-1."""
        all_keys, all_values = self._store.layer(layer_idx, keys)
        return self._written(all_keys, keys), self._written(all_values, values)

    def _written(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self._level and isinstance(self._rows, slice):
            store[self._rows, :, self._starts[0] : self._length] = new
        else:
            rows = torch.arange(store.shape[0], device=store.device)[self._rows]
            positions = self.positions(store.device).expand(len(self._starts), -1)
            store[rows[:, None], :, positions] = new.transpose(1, 2)
        return store[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this pass, as transformers asks for; positions are given explicitly, so 0 serves."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Where the new tokens start, for the mask that transformers makes when it is given none: all rows alike."""
        return self._starts[0]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """How many keys a query could look at, and the index of the first."""
        return self._length, 0
