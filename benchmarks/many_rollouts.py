"""How long `lecritique diagnose values` takes over many saved trajectories, and how much memory.

    PYTHONPATH=. python benchmarks/many_rollouts.py [TRAJECTORIES]

Fabricates a run of 200,000 trajectories (50,000 problems of 4) of 64 tokens, with token ids, mask, log-probs,
advantages, values and targets, and diagnoses it in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lecritique.runs.rollouts import SCHEMA

TOKENS, GROUP, FILES = 64, 4, 20


def main() -> None:
    """Fabricate, diagnose, print."""
    trajectories = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder:
        run = fabricated_run(Path(folder) / "run", trajectories)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "lecritique", "diagnose", "values", str(run)], check=True)
        seconds = time.perf_counter() - started
    # ru_maxrss is in KiB on Linux.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{trajectories:,} trajectories of {TOKENS} tokens: {seconds:.1f} s, peak {peak:,.0f} MiB")


def fabricated_run(path: Path, trajectories: int) -> Path:
    """A run directory with saved rollouts only, whose values know a part of the return."""
    (path / "rollouts").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"preset": "pvf", "run": {"seed": 0}, "estimator": {"type": "value"}}))
    (path / "status.json").write_text(json.dumps({"state": "finished", "step": FILES, "steps": FILES}))
    metrics = "".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(FILES))
    (path / "metrics.jsonl").write_text(metrics)
    rng = np.random.default_rng(0)
    share = trajectories // FILES // GROUP * GROUP
    for step in range(FILES):
        table = rollouts_table(rng, step=step, count=share)
        pq.write_table(table, path / "rollouts" / f"step-{step:06d}.parquet")
    return path


def rollouts_table(rng: np.random.Generator, *, step: int, count: int) -> pa.Table:
    """The saved rollouts of one step."""
    groups = count // GROUP
    rows = np.repeat(np.arange(groups) + step * groups, GROUP)
    solvable = np.repeat(rng.random(groups), GROUP)
    rewards = (rng.random(count) < solvable).astype(np.float64)
    targets = np.repeat(rewards[:, None], TOKENS, axis=1)
    values = 0.5 * solvable[:, None] + 0.3 * targets + 0.2 * rng.random((count, TOKENS))
    columns = {
        "step": np.full(count, step),
        "row": rows,
        "attempt": np.zeros(count, dtype=np.int64),
        "member": np.tile(np.arange(GROUP), groups),
        "segment_index": np.zeros(count, dtype=np.int64),
        "task_id": [f"fabricated-{row}" for row in rows],
        "status": ["finished"] * count,
        "estimator": ["value"] * count,
        "reward": rewards,
        "prompt": ["?"] * count,
        "token_text": _listed(np.full((count, TOKENS), "x"), pa.string()),
        "token_ids": _listed(rng.integers(0, 256, (count, TOKENS)), pa.int32()),
        "action_mask": _listed(np.ones((count, TOKENS), dtype=bool), pa.bool_()),
        "turn_index": _listed(np.zeros((count, TOKENS)), pa.int16()),
        "sampler_logprobs": _listed(-rng.random((count, TOKENS)), pa.float32()),
        "advantages": _listed(targets - values, pa.float32()),
        "values": _listed(values, pa.float32()),
        "value_targets": _listed(targets, pa.float32()),
        "value_version": np.full(count, step),
    }
    fields = [field for field in SCHEMA if field.name in columns]
    return pa.table({field.name: columns[field.name] for field in fields}, schema=pa.schema(fields))


def _listed(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.ravel()).cast(kind))


if __name__ == "__main__":
    main()
