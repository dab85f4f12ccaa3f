"""Seconds and bytes of a device, whatever its kind, and what it can multiply."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Result = TypeVar("Result")


def accelerated(device: str) -> bool:
    """Whether the device has memory and a clock of its own."""
    return torch.device(device).type != "cpu"


def timed(device: str, work: Callable[[], Result]) -> tuple[float, Result]:
    """Wall seconds of `work` with all that it started on the device, and what it returned."""
    _settle(device)
    started = time.perf_counter()
    result = work()
    _settle(device)
    return time.perf_counter() - started, result


@dataclass(kw_only=True)
class Peak:
    """Bytes above what was there before; None where the device does not count them."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Fill in the largest number of bytes that were allocated inside, above those before."""
    release(device)
    found = Peak()
    if not accelerated(device):
        yield found
        return
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    yield found
    found.bytes = torch.accelerator.max_memory_allocated() - before


def release(device: str) -> None:
    """Give back what nobody refers to any more."""
    gc.collect()
    if accelerated(device):
        torch.accelerator.empty_cache()


def matmul_flops(device: str, dtype: str, *, size: int, repeats: int = 10) -> float:
    """Floating-point operations a second of the best of three runs of square matrix products."""
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    multiply()
    return 2.0 * size**3 * repeats / min(timed(device, multiply)[0] for _ in range(3))


def _settle(device: str) -> None:
    if accelerated(device):
        torch.accelerator.synchronize()
