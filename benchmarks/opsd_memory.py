"""Memory and time of the OPSD divergence over a vocabulary of 150,000 words and 8,192 tokens.

    python benchmarks/opsd_memory.py [--kind forward_kl] [--tokens 8192] [--vocabulary 150000] [--width 64]

Prints the highest resident memory above what inputs and gradients take, and the seconds of the forward and of the
backward pass on one thread. One kind per process, because the highest resident memory never falls.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch

from lecritique.numerics.distillation import opsd_divergence


def main() -> None:
    """Measure one kind of divergence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="forward_kl", choices=("forward_kl", "reverse_kl", "jsd"))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, options.tokens, options.width, generator=generator)
    student_head, teacher_head = 0.3 * torch.randn(2, options.vocabulary, options.width, generator=generator)
    student.requires_grad_()
    student_head = student_head.clone().requires_grad_()
    # The gradients themselves are needed by any method: count them as given.
    student.grad, student_head.grad = torch.zeros_like(student), torch.zeros_like(student_head)
    torch.ones(256, 256) @ torch.ones(256, 256)
    before = peak_mebibytes()

    started = time.perf_counter(), time.process_time()
    divergence = opsd_divergence(
        student, student_head, teacher, teacher_head, kind=options.kind, chunk_tokens=options.chunk_tokens
    )
    middle = time.perf_counter(), time.process_time()
    divergence.mean().backward()
    ended = time.perf_counter(), time.process_time()

    print(
        f"{options.kind}: {options.tokens} tokens, {options.vocabulary} words, width {options.width}: "
        f"mean {divergence.mean().item():.6f} nats, "
        f"extra memory {peak_mebibytes() - before:.0f} MiB, "
        f"forward {middle[0] - started[0]:.1f} s (CPU {middle[1] - started[1]:.1f}), "
        f"backward {ended[0] - middle[0]:.1f} s (CPU {ended[1] - middle[1]:.1f})"
    )


def peak_mebibytes() -> float:
    """Largest resident size of this process so far.

    Linux keeps the peak of the process that started this one in getrusage, so its own mark is read where there is one.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
