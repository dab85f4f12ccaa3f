"""One prepared check of a GPU: parity, throughput and memory, in under ten minutes. `make test-gpu` runs it.

    python -m tests.gpu.run [--device cuda] [--shapes full|small] [--out FILE.json]

Without a GPU it fails, and says so; with LECRITIQUE_SKIP_GPU=1 it says so and succeeds. `--device cpu --shapes small`
runs every line of it on any machine, for the numbers of parity only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.gpu.device_clock import accelerated, matmul_flops, release
from tests.gpu.parity import parity
from tests.gpu.roles import Measured, Roles
from tests.gpu.workloads import FULL, SMALL, Workload

SHAPES = {"full": FULL, "small": SMALL}
# An estimate within this share of the peak is taken as right; below, a plan would run out of memory.
_MEMORY_SHARE = 0.25
_CRITICS = ("evaluator", "value trainer")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every check holds, 1 when one does not or there is nothing to check on."""
    options = _options(arguments)
    missing = _missing(options.device)
    if missing is not None:
        skips = os.environ.get("LECRITIQUE_SKIP_GPU") == "1"
        print(f"{missing} {'Skipped.' if skips else 'Set LECRITIQUE_SKIP_GPU=1 to skip.'}", file=sys.stderr)
        return 0 if skips else 1
    device = options.device or torch.accelerator.current_accelerator().type
    shapes = SHAPES[options.shapes]
    started = time.perf_counter()
    report = {"environment": environment(device), **matmul_rates(device, small=options.shapes == "small")}
    report["parity"] = [gap.record() for gap in parity(shapes[0], device)]
    print_gaps(report["parity"])
    report["workloads"] = []
    for work in shapes:
        report["workloads"].append(measured_workload(work, device, report["matmul_flops"][work.dtype]))
        print_workload(report["workloads"][-1])
        release(device)
    report["seconds"] = time.perf_counter() - started
    failed = failures(report)
    report["failed"] = failed
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['seconds']:.0f} s; " + ("; ".join(failed) if failed else "every check holds"))
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Parity, throughput and memory on one device.")
    parser.add_argument("--device", default=None, help="by default the machine's accelerator")
    parser.add_argument("--shapes", choices=SHAPES, default="full")
    parser.add_argument("--out", type=Path, default=None, help="where the figures go as JSON")
    return parser.parse_args(arguments)


def _missing(device: str | None) -> str | None:
    """What this machine lacks, in a sentence."""
    if device is not None and not accelerated(device):
        return None
    if not torch.accelerator.is_available():
        return f"No accelerator: torch {torch.__version__} finds none on this machine, and this check needs one."
    here = torch.accelerator.current_accelerator().type
    if device is not None and torch.device(device).type != here:
        return f"No {device}: the accelerator of this machine is {here}."
    return None


def environment(device: str) -> dict[str, Any]:
    """What the figures were measured with."""
    name = torch.get_device_module(device).get_device_name() if accelerated(device) else "cpu"
    return {"device": device, "name": name, "torch": torch.__version__}


def matmul_rates(device: str, *, small: bool) -> dict[str, dict[str, float]]:
    """Measured operations a second of matrix products, the peak that shares are taken of."""
    size = 256 if small else 8192
    return {"matmul_flops": {dtype: matmul_flops(device, dtype, size=size) for dtype in ("bfloat16", "float32")}}


def measured_workload(work: Workload, device: str, peak_flops: float) -> dict[str, Any]:
    """Every role, and the seconds of a step with the critic and without it, one role after the other."""
    roles = Roles(work, device).all()
    return {
        "name": work.name,
        "dtype": work.dtype,
        "rows": work.rows,
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
        "roles": [role.record(peak_flops) for role in roles],
        "step_seconds": {"critic off": _sum(roles, without=_CRITICS), "critic on": _sum(roles, without=())},
    }


def _sum(roles: Sequence[Measured], *, without: Sequence[str]) -> float:
    return sum(role.seconds for role in roles if role.role not in without)


def failures(report: dict[str, Any]) -> list[str]:
    """What does not hold, one sentence each."""
    failed = [
        f"{gap['what']} in {gap['dtype']} differ by {gap['mean_nats']:.1e} nats in the mean, "
        f"{gap['max_nats']:.1e} at most"
        for gap in report["parity"]
        if not gap["within_limit"]
    ]
    for work in report["workloads"]:
        for role in work["roles"]:
            peak, estimate = role["peak_bytes"], role["estimated_bytes"]
            if peak is not None and peak > (1 + _MEMORY_SHARE) * estimate:
                failed.append(
                    f"the {role['role']} of {work['name']} took {_bytes(peak)}, and the plan says {_bytes(estimate)}"
                )
    return failed


def print_gaps(gaps: Sequence[dict[str, Any]]) -> None:
    """A line for each."""
    print(f"{'log-probs of the same tokens':<30} {'dtype':<9} {'tokens':>7} {'mean nats':>10} {'max nats':>10}")
    for gap in gaps:
        numbers = f"{gap['tokens']:>7} {gap['mean_nats']:>10.1e} {gap['max_nats']:>10.1e}"
        print(f"{gap['what']:<30} {gap['dtype']:<9} {numbers}{'' if gap['within_limit'] else '  too large'}")


def print_workload(work: dict[str, Any]) -> None:
    """A line for each role, and the steps."""
    batch = f"{work['rows']} rows of {work['prompt_tokens']} + {work['new_tokens']} tokens"
    print(f"\n{work['name']}, {work['dtype']}, {batch}")
    print(f"{'role':<16} {'seconds':>9} {'tokens/s':>10} {'of peak':>8} {'memory':>10} {'planned':>10}")
    for role in work["roles"]:
        peak = "-" if role["peak_bytes"] is None else _bytes(role["peak_bytes"])
        rate = f"{role['tokens_per_second'] or 0:>10.0f} {role['share_of_matmul_peak'] or 0:>8.1%}"
        print(f"{role['role']:<16} {role['seconds']:>9.3f} {rate} {peak:>10} {_bytes(role['estimated_bytes']):>10}")
    print("step: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in work["step_seconds"].items()))


def _bytes(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.2f} MiB"


if __name__ == "__main__":
    sys.exit(main())
