"""Time of GAE, the Tether fit and VASPO's fusion on one thread.

    python benchmarks/numerics.py

One policy batch: 128 responses of 8,192 tokens, seven tenths of them actions, in float32 and float64. Then half and
twice the tokens, which should take half and twice the time. `cpu` is the thread's own time, which other processes on
the machine disturb little; `wall` is what a clock shows. Milliseconds, median and least of the repetitions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from lecritique.numerics.fusion import fused_advantages, teacher_gap
from lecritique.numerics.gae import gae, terminal_rewards
from lecritique.numerics.tether import TetherSums, tether_bucket_sums, tether_pairs, tether_sums

ROWS = 128
BUCKETS = 8
REPEATS = 15


def main() -> None:
    """Print one line per function and size."""
    torch.set_num_threads(1)
    headings = ("cpu median", "cpu least", "wall median", "wall least")
    print(f"{'function':24}{'dtype':9}{'tokens':>12}" + "".join(f"{heading:>13}" for heading in headings))
    for dtype in (torch.float32, torch.float64):
        for length in (4096, 8192, 16384):
            for name, function in functions(length, dtype).items():
                cpu, wall = timings(function)
                figures = statistics.median(cpu), min(cpu), statistics.median(wall), min(wall)
                row = f"{name:24}{str(dtype).removeprefix('torch.'):9}{f'{ROWS} x {length}':>12}"
                print(row + "".join(f"{figure:13.1f}" for figure in figures))


def functions(length: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """What is timed, on one random batch."""
    generator = torch.Generator().manual_seed(0)
    values, teacher, student = torch.rand(3, ROWS, length, dtype=dtype, generator=generator)
    mask = torch.rand(ROWS, length, generator=generator) < 0.7
    rewards = terminal_rewards(torch.rand(ROWS, dtype=dtype, generator=generator).round(), mask)
    advantages, _ = gae(rewards, values, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0)

    def tether(sums_of: Callable[[torch.Tensor, torch.Tensor], TetherSums | list[TetherSums]]) -> None:
        for row in range(ROWS):
            sums_of(*tether_pairs(advantages[row], values[row], 0.5, mask[row]))

    def fusion() -> torch.Tensor:
        gap = teacher_gap(teacher, student, action_mask_N=mask)
        return fused_advantages(advantages, gap, action_mask_N=mask)

    return {
        "gae, lambdas equal": lambda: gae(rewards, values, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0),
        "gae, lambdas differ": lambda: gae(rewards, values, mask, gamma=1.0, gae_lambda=0.95, value_target_lambda=1.0),
        "tether fit": lambda: tether(tether_sums),
        "tether fit, bucketed": lambda: tether(lambda x, y: tether_bucket_sums(x, y, BUCKETS)),
        "fusion": fusion,
    }


def timings(function: Callable[[], object]) -> tuple[list[float], list[float]]:
    """CPU and wall milliseconds of each repetition, after one that is not counted."""
    function()
    cpu, wall = [], []
    for _ in range(REPEATS):
        started = time.thread_time(), time.perf_counter()
        function()
        cpu.append(1e3 * (time.thread_time() - started[0]))
        wall.append(1e3 * (time.perf_counter() - started[1]))
    return cpu, wall


if __name__ == "__main__":
    main()
