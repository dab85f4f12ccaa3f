"""Siblings begin with the same prompt and context: such a prefix is read once, and the rest of the rows behind it.

Only for scoring without gradient. A row's answer is that of reading it whole, up to rounding: a token sees the same
keys, whether they were made in its own row or in the shared one.

Shape letters: G groups of rows, B rows, P padded prefix length, q padded length of what follows it, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.models.packed_attention import Segments
from lecritique.models.packing import buckets, padded

# benchmarks/shared_prefix.py: below either of them the second forward pass costs what the first one saves.
LEAST_TOKENS = 32
LEAST_SAVED = 1 / 3
# Keys of one layer for each token of a packed pass.
_MOST_KEYS = 16


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """Rows, named by their index in the caller's list, whose first `length` ids are the same."""

    indices: tuple[int, ...]
    length: int


def shared_prefixes(rows: Sequence[NDArray[np.int64]], first_wanted: Sequence[int]) -> list[SharedPrefix]:
    """Groups of rows that are worth reading with one prefix; what is in none of them is best read whole.

    Depends on the rows alone. A prefix ends before the state from which the first wanted token of any of its rows is
    chosen, so that every wanted state is behind it.

    Args:
        rows: token ids, each as far as it must be read.
        first_wanted: index of each row's first wanted token, at least 1 where the row is to be grouped.
    """
    order = sorted(range(len(rows)), key=lambda index: (rows[index].astype(">i8").tobytes(), index))
    shared = [_usable(one, other, rows, first_wanted) for one, other in pairwise(order)]
    groups: list[SharedPrefix] = []
    for place, index in enumerate(order):
        length = shared[place - 1] if groups else 0
        # A much longer prefix on either side is of one task; the shorter one is a system message of all of them.
        rival = max([*shared[place : place + 1], groups[-1].length if groups and len(groups[-1].indices) > 1 else 0])
        if length >= LEAST_TOKENS and 4 * length >= 3 * rival:
            last = groups[-1]
            length = min(length, last.length) if len(last.indices) > 1 else length
            groups[-1] = SharedPrefix(indices=(*last.indices, index), length=length)
        else:
            groups.append(SharedPrefix(indices=(index,), length=0))
    return [group for group in groups if _pays(group, rows)]


def _usable(one: int, other: int, rows: Sequence[NDArray[np.int64]], first_wanted: Sequence[int]) -> int:
    """Tokens that two rows could share."""
    return max(0, min(_common(rows[one], rows[other]), first_wanted[one] - 1, first_wanted[other] - 1))


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many ids the two begin with alike."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _pays(group: SharedPrefix, rows: Sequence[NDArray[np.int64]]) -> bool:
    saved = (len(group.indices) - 1) * group.length
    return saved > 0 and saved >= LEAST_SAVED * sum(len(rows[index]) for index in group.indices)


@dataclass(frozen=True, kw_only=True)
class PrefixBatch:
    """Prefixes that one forward pass reads, and the rows behind them by the passes that read what follows."""

    groups: tuple[SharedPrefix, ...]
    passes: tuple[tuple[tuple[int, int], ...], ...]
    """Of each pass its rows as (place of the row's prefix in `groups`, index in the caller's list)."""


def prefix_batches(
    groups: Sequence[SharedPrefix], lengths: Sequence[int], *, max_tokens: int, packed: bool = False
) -> list[PrefixBatch]:
    """Every prefix once, with others as far as they fit, and what follows them in as many passes as it takes.

    Depends on lengths alone. Only one batch's keys need be kept at a time.

    Args:
        groups: of `shared_prefixes`.
        lengths: of all rows of the caller's list, in tokens.
        max_tokens: of a pass. Packed, what it reads. Padded, the keys that exist at once, those of prefixes among them.
            A prefix or a rest that is longer alone gets a pass of its own.
        packed: rows are laid end to end; otherwise rests of similar length are read together.
    """
    return _packed_batches(groups, lengths, max_tokens) if packed else _padded_batches(groups, lengths, max_tokens)


def _packed_batches(groups: Sequence[SharedPrefix], lengths: Sequence[int], max_tokens: int) -> list[PrefixBatch]:
    # Prefixes of similar length together: attention pads them to one width for rows of a bucket.
    ordered = sorted(groups, key=lambda group: (-group.length, group.indices))
    batches = _filled(ordered, lambda batch: sum(group.length for group in batch), max_tokens)
    return [PrefixBatch(groups=tuple(batch), passes=_packed_passes(batch, lengths, max_tokens)) for batch in batches]


def _packed_passes(
    batch: Sequence[SharedPrefix], lengths: Sequence[int], max_tokens: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Prefix by prefix, longest first: at most `max_tokens` tokens and `_MOST_KEYS` times as many keys a pass."""
    passes: list[list[tuple[int, int]]] = []
    tokens = prefix = longest = 0
    for owner, group in enumerate(batch):
        for index in group.indices:
            rest = lengths[index] - group.length
            tokens, longest = tokens + rest, max(longest, rest)
            # A pass begins with its longest prefix.
            keys = (len(passes[-1]) + 1) * (prefix + longest) if passes else 0
            if not passes or tokens > max_tokens or keys > _MOST_KEYS * max_tokens:
                passes.append([])
                tokens, prefix, longest = rest, group.length, rest
            passes[-1].append((owner, index))
    return tuple(tuple(each) for each in passes)


def _padded_batches(groups: Sequence[SharedPrefix], lengths: Sequence[int], max_tokens: int) -> list[PrefixBatch]:
    ordered = sorted(groups, key=lambda group: (group.length - _longest(group, lengths), group.indices))
    batches = _filled(ordered, lambda batch: _size(batch, lengths), max_tokens)
    return [PrefixBatch(groups=tuple(batch), passes=_padded_passes(batch, lengths, max_tokens)) for batch in batches]


def _filled(
    ordered: Sequence[SharedPrefix], size: Callable[[Sequence[SharedPrefix]], int], max_tokens: int
) -> list[list[SharedPrefix]]:
    """Groups in their order, as many in a batch as stay within `max_tokens`, one at least."""
    batches: list[list[SharedPrefix]] = []
    for group in ordered:
        if batches and size([*batches[-1], group]) <= max_tokens:
            batches[-1].append(group)
        else:
            batches.append([group])
    return batches


def _padded_passes(
    batch: Sequence[SharedPrefix], lengths: Sequence[int], max_tokens: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Rests of similar length together, at most `max_tokens` keys a pass."""
    members = [(owner, index) for owner, group in enumerate(batch) for index in group.indices]
    rests = [lengths[index] - batch[owner].length for owner, index in members]
    width = max(group.length for group in batch)
    passes = []
    for bucket in buckets(rests):
        count = max(1, max_tokens // (width + rests[bucket[0]]))  # a bucket's longest rest comes first
        cuts = [bucket[start : start + count] for start in range(0, len(bucket), count)]
        passes += [tuple(members[place] for place in cut) for cut in cuts]
    return tuple(passes)


def _longest(group: SharedPrefix, lengths: Sequence[int]) -> int:
    return max(lengths[index] for index in group.indices)


def _size(batch: Sequence[SharedPrefix], lengths: Sequence[int]) -> int:
    """Keys that exist at once: rows times (longest prefix + longest rest)."""
    rest = max(_longest(group, lengths) - group.length for group in batch)
    return sum(len(group.indices) for group in batch) * (max(group.length for group in batch) + rest)


@torch.no_grad()
def packed_prefixes(
    decoder: Any, batch: Sequence[SharedPrefix], rows: Sequence[NDArray[np.int64]], *, device: torch.device
) -> Segments:
    """Reads the prefixes end to end: what `Segments.following` takes, and `Segments.forget` lets go of."""
    ids = np.concatenate([rows[group.indices[0]][: group.length] for group in batch])
    prefixes = replace(Segments.of([group.length for group in batch], device), kept={})
    decoder(input_ids=torch.from_numpy(ids).to(device)[None], use_cache=False, **prefixes.inputs())
    return prefixes


@torch.no_grad()
def states_behind_prefixes(
    decoder: Any, batch: PrefixBatch, rows: Sequence[NDArray[np.int64]], *, device: torch.device
) -> Iterator[tuple[list[tuple[int, int]], torch.Tensor]]:
    """Final hidden states of what follows the prefixes, padded, pass by pass.

    Yields (row, index of its first token behind the prefix) of each row, and their states [B, q, H].
    """
    prefixes = _read_prefixes(decoder, batch.groups, rows, device)
    for together in batch.passes:
        places = [(index, batch.groups[owner].length) for owner, index in together]
        rest = [rows[index][start:] for index, start in places]
        yield places, _read_behind(decoder, prefixes, [owner for owner, _ in together], rest, device)


def _read_prefixes(
    decoder: Any, batch: Sequence[SharedPrefix], rows: Sequence[NDArray[np.int64]], device: torch.device
) -> _Prefixes:
    lengths = [group.length for group in batch]
    prefixes = _Prefixes(torch.tensor(lengths, device=device))
    ids_GP = padded(
        [rows[group.indices[0]][: group.length] for group in batch], fill=0, dtype=torch.long, device=device
    )
    index_P = torch.arange(ids_GP.shape[1], device=device)
    decoder(
        input_ids=ids_GP,
        position_ids=torch.minimum(index_P, prefixes.lengths_G[:, None] - 1),
        past_key_values=prefixes,
        attention_mask=(index_P[None, :] <= index_P[:, None])[None, None].expand(len(batch), 1, -1, -1),
        use_cache=True,
    )
    return prefixes


def _read_behind(
    decoder: Any, prefixes: _Prefixes, owners: Sequence[int], rest: Sequence[NDArray[np.int64]], device: torch.device
) -> torch.Tensor:
    """Final hidden states [B, q, H] of rests, row b behind prefix owners[b]."""
    owner_B = torch.tensor(owners, device=device)
    start_B = prefixes.lengths_G[owner_B]
    last_B = torch.tensor([len(ids) - 1 for ids in rest], device=device)
    ids_Bq = padded(rest, fill=0, dtype=torch.long, device=device)
    index_q = torch.arange(ids_Bq.shape[1], device=device)
    before_BP = torch.arange(prefixes.width, device=device) < start_B[:, None]
    causal_qq = index_q[None, :] <= index_q[:, None]
    prefixes.follow(owner_B)
    return decoder(  # type: ignore[no-any-return]
        input_ids=ids_Bq,
        # Padding takes the place of the row's last id: learned positions end at the context length.
        position_ids=start_B[:, None] + torch.minimum(index_q, last_B[:, None]),
        past_key_values=prefixes,
        attention_mask=torch.cat(
            [
                before_BP[:, None, None, :].expand(-1, 1, len(index_q), -1),
                causal_qq[None, None].expand(len(rest), 1, -1, -1),
            ],
            dim=-1,
        ),
        use_cache=True,
    ).last_hidden_state


class _Prefixes:
    """What transformers calls a cache: keeps the prefixes' keys, then hands them to the rows that follow them."""

    is_compileable = False

    def __init__(self, lengths_G: torch.Tensor) -> None:
        self.lengths_G = lengths_G
        self.width = int(lengths_G.max())
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._owner_B: torch.Tensor | None = None

    def follow(self, owner_B: torch.Tensor) -> None:
        """From now on row b stands behind prefix owner_B[b]."""
        self._owner_B = owner_B

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [G, heads, P, width] are kept; those [B, heads, q, width] come back behind their prefix."""
        if self._owner_B is None:
            self._layers[layer_idx] = keys, values
            return keys, values
        before_keys, before_values = self._layers[layer_idx]
        return (
            torch.cat([before_keys[self._owner_B], keys], dim=2),
            torch.cat([before_values[self._owner_B], values], dim=2),
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this pass, as transformers asks for; positions are given explicitly, so 0 serves."""
        return 0
