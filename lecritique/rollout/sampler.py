"""The decode loop: rows of token ids are continued in bounded chunks over a kept key-value cache.

A result depends on the request alone (its ids, seed and settings), up to floating-point ties:
not on what else is in the batch, nor on the order in which rows joined.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lecritique.core.ids import RolloutId
from lecritique.core.rollout import Completion, FinishReason, GenerateRequest, Sampling
from lecritique.core.seeds import uniforms
from lecritique.rollout.cache import ForwardView, RowCache
from lecritique.rollout.joined_decoder import JoinedDecoder, joined_decoder
from lecritique.rollout.sampling import draw


class _Row:
    """One sequence being continued: all its ids, and how many of them the cache holds."""

    def __init__(self, request: GenerateRequest, slot: int, cached: int) -> None:
        self.request = request
        self.slot = slot
        self.cached = cached
        self.token_ids: list[int] = request.token_ids.tolist()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.uniforms: list[float] = []
        """Of the positions that the chunk may reach, the next one last."""

    def append(self, token: int, logprob: float, version: int) -> None:
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.request.stop_ids:
            self.finish_reason = "stop"
        elif len(self.logprobs) >= self.request.max_new_tokens:
            self.finish_reason = "length"

    def completion(self) -> Completion:
        return Completion(
            request_id=self.request.request_id,
            token_ids=np.array(self.token_ids[len(self.request.token_ids) :], dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float64),
            policy_version=np.array(self.versions, dtype=np.int64),
            finish_reason=self.finish_reason or "cancelled",
        )


class Sampler:
    """Continues any number of requests, `max_rows` at a time.

    Args:
        model: a causal LM whose layers all attend to the full sequence.
        max_rows: rows decoded at once, which is also how many sequences keep their cache.
        chunk_tokens: tokens decoded before finished rows leave and waiting ones join.
        prefill_tokens: padded tokens of one prefill pass.
    """

    def __init__(self, model: Any, *, max_rows: int, chunk_tokens: int, prefill_tokens: int) -> None:
        self.model = model
        self.version = 0
        self._chunk_tokens = chunk_tokens
        self._prefill_tokens = prefill_tokens
        self._max_rows = max_rows
        self.clear()

    def clear(self) -> None:
        """Drop every request and every cached key."""
        self._waiting: deque[GenerateRequest] = deque()
        self._active: list[_Row] = []
        self._free = list(range(self._max_rows))
        self._idle: OrderedDict[RolloutId, _Row] = OrderedDict()
        self._cache = RowCache(self._max_rows)
        self._joined: JoinedDecoder | None = None
        self._joined_is_old = True

    def add(self, request: GenerateRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def cancel(self, request_id: str) -> Completion | None:
        """Stop a request and return what it has, or None if it is not here."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                return _Row(request, slot=-1, cached=0).completion()
        for row in self._active:
            if row.request.request_id == request_id:
                self._active.remove(row)
                self._free.append(row.slot)
                return row.completion()
        return None

    def first_version(self, request_id: str) -> int | None:
        """The weights' version that sampled the request's first token; None before that, or when it is not here."""
        for row in self._active:
            if row.request.request_id == request_id and row.versions:
                return row.versions[0]
        return None

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._active)

    def forget_cache(self) -> None:
        """Drop every cached key and value: none survives an update of the weights, after which this must be called."""
        self._joined_is_old = True
        for row in self._active:
            row.cached = 0
        self._free.extend(row.slot for row in self._idle.values())
        self._idle.clear()

    @torch.inference_mode()
    def chunk(self) -> list[Completion]:
        """Decode one chunk and return the completions that it finished."""
        self._admit()
        if not self._active:
            return []
        if self._joined_is_old:
            self._joined = None  # not two of them at a time
            self._joined, self._joined_is_old = joined_decoder(self.model.get_decoder()), False
        rows = list(self._active)
        self._draw_uniforms(rows)
        for _ in range(self._chunk_tokens):
            rows = self._side_by_side(rows)
            self._step(rows)
            rows = [row for row in rows if row.finish_reason is None]
            if not rows or len(rows) < len(self._active) // 2:
                break
        finished = [row for row in self._active if row.finish_reason is not None]
        self._active = [row for row in self._active if row.finish_reason is None]
        for row in finished:
            self._keep(row)
        return [row.completion() for row in finished]

    def _admit(self) -> None:
        while self._waiting:
            kept = self._idle.pop(self._waiting[0].sequence_id, None)
            slot = kept.slot if kept else self._free_slot()
            if slot is None:
                break
            request = self._waiting.popleft()
            self._active.append(_Row(request, slot, _shared_prefix(kept, request) if kept else 0))
        self._active.sort(key=lambda row: row.slot)

    def _side_by_side(self, rows: list[_Row]) -> list[_Row]:
        """The rows in slots without gaps between them, so that their keys need not be copied at every token.

        Rows beyond the last slot needed change places with whoever holds a slot in between.
        """
        first = min(row.slot for row in rows)
        moving = [row for row in rows if row.slot >= first + len(rows)]
        if not moving:
            return rows
        gaps = sorted(set(range(first, first + len(rows))) - {row.slot for row in rows})
        self._cache.swap_rows([row.slot for row in moving], gaps)
        holders = {row.slot: row for row in (*self._active, *self._idle.values())}
        for row, gap in zip(moving, gaps, strict=True):
            if gap in holders:
                holders[gap].slot = row.slot
            else:
                self._free[self._free.index(gap)] = row.slot
            row.slot = gap
        return sorted(rows, key=lambda row: row.slot)

    def _keep(self, row: _Row) -> None:
        """Keep a finished row's cache for the next request of its sequence; an older one of it is given up."""
        older = self._idle.pop(row.request.sequence_id, None)
        if older is not None:
            self._free.append(older.slot)
        self._idle[row.request.sequence_id] = row

    def _free_slot(self) -> int | None:
        if self._free:
            self._free.sort(reverse=True)
            return self._free.pop()
        if self._idle:
            return self._idle.popitem(last=False)[1].slot
        return None

    def _draw_uniforms(self, rows: Sequence[_Row]) -> None:
        """One for each position that the chunk may reach: all at once, a call for each token would cost more."""
        seeds = np.array([row.request.seed for row in rows], dtype=np.uint64)
        ends = np.array([len(row.token_ids) for row in rows]) + self._chunk_tokens
        backwards = ends[:, None] - 1 - np.arange(self._chunk_tokens)
        for row, numbers in zip(rows, uniforms(seeds[:, None], backwards).tolist(), strict=True):
            row.uniforms = numbers

    def _step(self, rows: Sequence[_Row]) -> None:
        logits_BV = self._next_logits(rows)
        for sampling, chosen in _by_sampling(rows).items():
            logits = logits_BV if len(chosen) == len(rows) else logits_BV[chosen]
            picked = [rows[index] for index in chosen]
            noise = torch.tensor([row.uniforms.pop() for row in picked], dtype=torch.float64, device=logits.device)
            tokens, logprobs = draw(logits, noise, sampling)
            for row, token, logprob in zip(picked, tokens.tolist(), logprobs.tolist(), strict=True):
                row.append(token, logprob, self.version)

    def _next_logits(self, rows: Sequence[_Row]) -> torch.Tensor:
        """Logits [B, V] after each row's last id; feeds what the cache does not hold yet."""
        if all(len(row.token_ids) - row.cached == 1 for row in rows):
            return self._forward(rows)
        twins = _twins(rows)
        logits: dict[int, torch.Tensor] = {}
        for batch in self._prefill_batches(rows, copies={row.slot for row, _ in twins}):
            for row, line in zip(batch, self._forward(batch), strict=True):
                logits[row.slot] = line
        for row, twin in twins:
            self._cache.copy_rows(self._slots([twin]), self._slots([row]))
            logits[row.slot], row.cached = logits[twin.slot], twin.cached
        return torch.stack([logits[row.slot] for row in rows])

    def _prefill_batches(self, rows: Sequence[_Row], *, copies: set[int]) -> list[list[_Row]]:
        """Rows with similar amounts to feed, without those that will be copied from a twin."""
        own = sorted((row for row in rows if row.slot not in copies), key=lambda r: len(r.token_ids) - r.cached)
        batches: list[list[_Row]] = []
        for row in own:
            width = len(row.token_ids) - row.cached
            fits = batches and (len(batches[-1]) + 1) * width <= self._prefill_tokens
            similar = batches and width <= 2 * (len(batches[-1][0].token_ids) - batches[-1][0].cached) + 8
            if fits and similar:
                batches[-1].append(row)
            else:
                batches.append([row])
        return [sorted(batch, key=lambda row: row.slot) for batch in batches]

    def _slots(self, rows: Sequence[_Row]) -> torch.Tensor:
        return torch.tensor([row.slot for row in rows], device=self.model.device)

    def _forward(self, rows: Sequence[_Row]) -> torch.Tensor:
        """Feed each row's uncached ids; logits [B, V] at its last id."""
        device = self.model.device
        fresh = [row.token_ids[row.cached :] for row in rows]
        width = max(len(ids) for ids in fresh)
        view = self._cache.forward_view([row.slot for row in rows], [row.cached for row in rows], width)
        ids_Bq = torch.tensor([ids + [0] * (width - len(ids)) for ids in fresh], device=device)
        if width == 1 and self._joined is not None:
            states_BH = self._joined(ids_Bq[:, 0], view.positions(device), view)
        else:
            states_BH = self._last_states(ids_Bq, [len(ids) for ids in fresh], view)
        for row in rows:
            row.cached = len(row.token_ids)
        return self.model.get_output_embeddings()(states_BH)  # type: ignore[no-any-return]

    def _last_states(self, ids_Bq: torch.Tensor, lengths: Sequence[int], view: ForwardView) -> torch.Tensor:
        """Final hidden states [B, H] at each row's last id, by transformers; ids beyond a row's length are padding."""
        device = ids_Bq.device
        last_B = torch.tensor(lengths, device=device) - 1
        positions_Bq = view.positions(device)
        # Padding takes the place of the row's last id: learned positions end at the context length.
        positions_Bq = torch.minimum(positions_Bq, positions_Bq[:, :1] + last_B[:, None])
        hidden_BqH = self.model.get_decoder()(
            input_ids=ids_Bq,
            position_ids=positions_Bq,
            past_key_values=view,
            attention_mask=view.attention_mask(device),
            use_cache=True,
        ).last_hidden_state
        return hidden_BqH[torch.arange(len(lengths), device=device), last_B]  # type: ignore[no-any-return]


def _by_sampling(rows: Sequence[_Row]) -> dict[Sampling, list[int]]:
    chosen: dict[Sampling, list[int]] = {}
    for index, row in enumerate(rows):
        chosen.setdefault(row.request.sampling, []).append(index)
    return chosen


def _twins(rows: Sequence[_Row]) -> list[tuple[_Row, _Row]]:
    """(row, earlier row) pairs that start from the same ids with nothing cached: a group's shared prompt."""
    first: dict[bytes, _Row] = {}
    pairs = []
    for row in rows:
        if row.cached or row.logprobs:
            continue
        twin = first.setdefault(row.request.token_ids.tobytes(), row)
        if twin is not row:
            pairs.append((row, twin))
    return pairs


def _shared_prefix(kept: _Row, request: GenerateRequest) -> int:
    """How many cached ids the request still begins with (all but its last id at most)."""
    mine = np.array(kept.token_ids[: kept.cached])
    length = min(len(mine), len(request.token_ids) - 1)
    differs = np.flatnonzero(mine[:length] != request.token_ids[:length])
    return int(differs[0]) if len(differs) else length
