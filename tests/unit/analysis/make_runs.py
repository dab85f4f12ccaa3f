"""Synthetic run directories of the format that runs write, for the tests of analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ARMS = {
    "mean": {"gain": 0.14, "ev": None, "rho": None},
    "value": {"gain": 0.17, "ev": 0.22, "rho": None},
    "pvf": {"gain": 0.26, "ev": 0.6, "rho": None},
    "tether": {"gain": 0.21, "ev": 0.24, "rho": 0.45},
}
BASE = 0.4
_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("step", "row", "attempt", "member", "segment_index")),
        *((name, pa.string()) for name in ("task_id", "status", "estimator", "prompt", "context")),
        *((name, pa.float64()) for name in ("reward", "baseline", "rho")),
        ("value_version", pa.int64()),
        ("token_text", pa.list_(pa.string())),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("turn_index", pa.list_(pa.int16())),
        *((name, pa.list_(pa.float32())) for name in ("sampler_logprobs", "advantages", "value_targets", "values")),
    ]
)


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as metrics.jsonl of the run directory `path`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write saved rollouts; keys that a row lacks become null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), file)


def make_run(
    path: Path,
    *,
    arm: str = "value",
    seed: int = 0,
    steps: int = 120,
    planned: int | None = None,
    state: str = "finished",
    gain: float = 0.2,
    ev: float | None = 0.3,
    rho: float | None = None,
    save_every: int = 20,
    texts: tuple[str, ...] = (),
    more: Mapping[str, float] | None = None,
) -> Path:
    """Fabricate one run directory; `ev` None stands for an arm without a critic, `more` are metrics that grow by a
    hundredth of their first value a step.
    """
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, *arm.encode()[:8]])
    planned = planned or steps
    config = {
        "run": {"arm": arm, "seed": seed, "steps": planned},
        "estimator": {"type": arm if arm in ARMS else "value"},
        "task": {"type": "sudoku4"},
        "critic": {"enabled": ev is not None, "context": "env" if arm == "pvf" else "none"},
    }
    (path / "config.json").write_text(json.dumps(config))
    status = {"state": state, "step": steps, "steps": planned, "message": None, "updated": "2026-11-29T12:00:00Z"}
    (path / "status.json").write_text(json.dumps(status))
    shared = np.random.default_rng(seed).normal(0, 0.03, max(steps, 1))  # seeds share their tasks across arms
    gain *= 1 + 0.15 * float(rng.normal())
    ev = None if ev is None else ev * (1 + 0.1 * float(rng.normal()))
    rows = [_metric_row(t, steps, rng, gain, ev, rho, shared[t]) for t in range(steps)]
    for t, row in enumerate(rows):
        row |= {name: value * (1 + 0.01 * t) for name, value in (more or {}).items()}
    write_metrics(path, rows)
    for t in range(save_every, steps + 1, save_every):
        saved = make_rollouts(rng, step=t, arm=arm, ev=ev, rho=rho, texts=texts)
        write_parquet(path / "rollouts" / f"step-{t:05d}.parquet", saved)
    return path


def _metric_row(
    t: int, steps: int, rng: np.random.Generator, gain: float, ev: float | None, rho: float | None, shared: float
) -> dict[str, Any]:
    grown = 1 - np.exp(-3 * t / max(steps, 1))
    row: dict[str, Any] = {
        "step": t,
        "resume": 0,
        "reward": float(np.clip(BASE + gain * grown + shared + rng.normal(0, 0.025), 0, 1)),
        "rollouts": 128,
        "truncated_fraction": 0.01,
        "response_tokens": float(16 + rng.normal(0, 0.2)),
        "policy_grad_norm": float(abs(rng.normal(1, 0.1))),
        "seconds": float(0.8 + rng.normal(0, 0.02)),
        "explained_variance": None,
        "rho": None,
    }
    if ev is not None:
        row["explained_variance"] = float(ev * (1 - np.exp(-8 * t / max(steps, 1))) + rng.normal(0, 0.05))
        row["value_bias"] = float(rng.normal(0, 0.02))
        row["value_mse"] = float(0.2 * (1 - row["explained_variance"]))
    if rho is not None:
        row["rho"] = float(rho * (1 - 0.95 ** (t + 1)))
    return row


def make_rollouts(
    rng: np.random.Generator,
    *,
    step: int,
    arm: str,
    ev: float | None,
    rho: float | None = None,
    rollouts: int = 32,
    texts: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Two-turn episodes whose values learn the outcome along the response, better with a larger `ev`."""
    found = []
    for index in range(rollouts):
        reward = float(rng.random() < 0.55)
        board = "".join(rng.choice(list("1234.")) for _ in range(16))
        given = ["<|user|>\n", *(f"{c}" for c in board), "\n", "<|assistant|>\n"]
        turn_0 = [str(rng.integers(1, 5)) for _ in range(9)] + ["<|end|>"]
        asked = ["\n<|user|>\n", "go", " on", ":", "\n<|assistant|>\n"]
        turn_1 = [str(rng.integers(1, 5)) for _ in range(6)] + list(texts) + ["<|end|>"]
        parts = [(given, False, 0), (turn_0, True, 0), (asked, False, 1), (turn_1, True, 1)]
        tokens = [text for part, _, _ in parts for text in part]
        mask = np.concatenate([[act] * len(part) for part, act, _ in parts]).astype(bool)
        turn = np.concatenate([[k] * len(part) for part, _, k in parts])
        T = int(mask.sum())
        grown = np.linspace(0, 1, T) if T > 1 else np.zeros(T)
        sight = np.clip((0 if ev is None else ev) * 1.8 * grown, 0, 0.97)
        V = np.clip(0.55 + sight * (reward - 0.55) + rng.normal(0, 0.04, T), 0, 1)
        baseline = 0.5 + 0.1 * float(rng.normal())
        A = reward - (V if ev is not None else np.full(T, baseline))
        found.append(
            {
                "step": step,
                "row": index // 4,
                "attempt": 0,
                "member": index % 4,
                "segment_index": 0,
                "task_id": f"sudoku4/{index // 4}",
                "status": "ok",
                "estimator": arm,
                "reward": reward,
                "prompt": "".join(given),
                "context": "the solved grid: 1234341221434321" if arm == "pvf" else None,
                "baseline": baseline,
                "rho": rho,
                "value_version": None if ev is None else step,
                "token_text": tokens,
                "token_ids": [len(text) for text in tokens],
                "action_mask": mask.tolist(),
                "turn_index": turn.tolist(),
                "sampler_logprobs": np.where(mask, -np.abs(rng.normal(0, 0.7, len(mask))), 0).tolist(),
                "advantages": _scatter(A, mask),
                "value_targets": _scatter(np.full(T, reward), mask),
                "values": None if ev is None else _scatter(V, mask),
            }
        )
    return found


def make_comparison(
    path: Path,
    *,
    arms: dict[str, dict[str, Any]] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 120,
    base: float | None = BASE,
    recipe: str = "sudoku4-privileged",
    **run: Any,
) -> Path:
    """Fabricate a comparison; `arms` maps a name to the arguments of its runs."""
    arms = ARMS if arms is None else arms
    path.mkdir(parents=True, exist_ok=True)
    declared = {
        "schema": 1,
        "recipe": recipe,
        "arms": list(arms),
        "seeds": list(seeds),
        "base_reward": base,
        "base_rollouts": 512,
    }
    (path / "compare.json").write_text(json.dumps(declared))
    for arm, settings in arms.items():
        for seed in seeds:
            make_run(path / arm / f"seed-{seed}", arm=arm, seed=seed, steps=steps, **{**settings, **run})
    return path


def _scatter(values: np.ndarray, mask: np.ndarray) -> list[float]:
    full = np.zeros(len(mask))
    full[mask] = values
    return full.tolist()
