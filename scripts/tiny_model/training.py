"""One training phase.

Letters: B rows, L tokens of the longest row, D width, N chosen tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from .examples import NO_TARGET, Example, Stream, padded
from .shape import PAD_ID


def nll_sum(model: Qwen3ForCausalLM, examples: Sequence[Example]) -> tuple[torch.Tensor, int]:
    """Sum of the negative log-likelihood of the targets in nats, and their number."""
    tokens_BL = padded([e.token_ids for e in examples], PAD_ID)
    targets_BL = padded([e.targets for e in examples], NO_TARGET)[:, 1:]
    chosen = targets_BL != NO_TARGET
    hidden_BLD = model.model(input_ids=tokens_BL[:, :-1], use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BLD[chosen])
    total = torch.nn.functional.cross_entropy(logits_NV, targets_BL[chosen], reduction="sum")
    return total, int(chosen.sum())


def optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    outer = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "layers." in name)]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def of_like_length(examples: Sequence[Example], count: int | None) -> list[Sequence[Example]]:
    """The examples in groups of at most `count`, short ones together; one group of all where `count` is None."""
    if count is None:
        return [examples]
    ordered = sorted(examples, key=lambda example: len(example.token_ids))
    return [ordered[start : start + count] for start in range(0, len(ordered), count)]


def train(
    model: Qwen3ForCausalLM,
    streams: Sequence[Stream],
    steps: int,
    peak_rate: float,
    padded_together: int | None = None,
) -> None:
    """Train on gold dialogues with warm-up and cosine decay; the loss is the mean over all action tokens of a step."""
    parts = optimizers(model, peak_rate)
    model.train()
    started = time.time()
    for step in range(steps):
        rate = peak_rate * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * step / steps)))
        for optimizer in parts:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        batches = [stream.take_step() for stream in streams]
        all_tokens = sum(t != NO_TARGET for batch in batches for example in batch for t in example.targets)
        report = []
        for stream, batch in zip(streams, batches, strict=True):
            loss, tokens = 0.0, 0
            for group in of_like_length(batch, padded_together):
                total, count = nll_sum(model, group)
                (total / all_tokens).backward()
                loss, tokens = loss + total.item(), tokens + count
            report.append(f"{stream.label} {loss / tokens:.3f}")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in parts:
            optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1:5d}  {time.time() - started:5.0f} s  {'  '.join(report)}", flush=True)
    model.eval()
