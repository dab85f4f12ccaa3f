"""What it saves to read a prompt that siblings share once: values of the tiny critic, one thread.

    python benchmarks/shared_prefix.py

For groups of K rows with the same prompt, milliseconds of CPU to score them whole and behind a shared prefix, in both
layouts and in passes of their default lengths. `saved` is the share of tokens that need not be read; the feature is on
from a saved third and a prefix of 32 tokens on (`lecritique/models/shared_prefix.py`), and here on everywhere, so that
the bounds can be judged. The first sizes are longer than a pass of packed rows on a CPU has tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch

from lecritique.config.losses import Bce
from lecritique.models import shared_prefix
from lecritique.models.loading import load_causal_lm
from lecritique.models.scoring import TokenRow, values
from lecritique.models.value_model import ValueModel

# Prompt, response, K, groups.
SIZES = (
    (1500, 600, 4, 2), (1000, 300, 8, 2), (1200, 500, 4, 4), (300, 150, 16, 2),
    (256, 64, 8, 1), (256, 64, 8, 8), (512, 64, 4, 4), (128, 64, 4, 8), (64, 64, 8, 4), (64, 128, 8, 4),
    (64, 128, 4, 8), (128, 64, 2, 16), (64, 64, 2, 16), (64, 20, 4, 32), (48, 20, 4, 32), (32, 20, 4, 32),
    (16, 20, 4, 32), (8, 4, 8, 32),
)  # fmt: skip
REPEATS = 9
# Layout: whether rows are packed, and tokens of a pass.
LAYOUTS = {"padded": (False, 16_384), "packed": (True, 2_048)}


def main() -> None:
    """Print one line per size."""
    torch.set_num_threads(1)
    critics = {
        layout: ValueModel.from_policy(load_causal_lm("tiny", packed=packed).model, Bce(), seed=0)
        for layout, (packed, _) in LAYOUTS.items()
    }
    headings = ("prompt", "response", "K", "groups", "saved", "layout", "whole ms", "shared ms", "ratio")
    print("".join(f"{heading:>10}" for heading in headings))
    with mock.patch.object(shared_prefix, "LEAST_TOKENS", 1), mock.patch.object(shared_prefix, "LEAST_SAVED", 0.0):
        for size in SIZES:
            for layout, (_, most) in LAYOUTS.items():
                _print_row(size, layout, critics[layout], most)


def _print_row(size: tuple[int, int, int, int], layout: str, critic: ValueModel, most: int) -> None:
    prompt, response, members, groups = size
    rows = sibling_rows(prompt, response, members, groups)
    whole = least(lambda: values(critic, rows, max_tokens=most, share_prefixes=False))
    shared = least(lambda: values(critic, rows, max_tokens=most))
    saved = (members - 1) * (prompt - 1) / (members * (prompt + response))
    figures = (f"{saved:.2f}", layout, f"{whole:.1f}", f"{shared:.1f}", f"{whole / shared:.2f}")
    print("".join(f"{each:>10}" for each in (*size, *figures)))


def sibling_rows(prompt: int, response: int, members: int, groups: int) -> list[TokenRow]:
    """Random ids."""
    rng = np.random.default_rng(0)
    wanted = np.arange(prompt + response) >= prompt
    rows = []
    for _ in range(groups):
        ids = rng.integers(0, 200, prompt)
        rows += [
            TokenRow(token_ids=np.concatenate([ids, rng.integers(0, 200, response)]), mask=wanted)
            for _ in range(members)
        ]
    return rows


def least(function: Callable[[], object]) -> float:
    """The least CPU milliseconds of some repetitions, after one that is not counted."""
    function()
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        function()
        times.append(1e3 * (time.thread_time() - started))
    return min(times)


if __name__ == "__main__":
    main()
