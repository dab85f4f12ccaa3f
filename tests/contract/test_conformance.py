"""Every conformance case, its data copied unchanged from the project's case file, through one adapter per function.

An adapter takes a case's inputs and its expected outcome and returns what the package says, in the shape of
the expected outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lecritique.credit.tether import TetherController
from lecritique.credit.warmup import ships
from lecritique.critic.replay import ReplayBuffer
from lecritique.numerics.alignment import align_values, insert_context, project_values, spread_over_context
from lecritique.numerics.baselines import group_advantages, group_baselines
from lecritique.numerics.explained_variance import value_fit
from lecritique.numerics.gae import gae, gae_segments, lambda_from_length, terminal_rewards, terminal_rewards_segments
from lecritique.numerics.policy_losses import dppo_keep, dppo_loss, token_mean
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_ema, tether_fit, tether_pairs, tether_sums
from lecritique.numerics.value_losses import categorical_loss, categorical_value, two_hot

CASES = json.loads((Path(__file__).parents[1] / "data" / "conformance_cases.json").read_text())
Data = dict[str, Any]
F64 = torch.float64


def lambdas(inputs: Data) -> dict[str, float]:
    return {key: inputs[key] for key in ("gamma", "gae_lambda", "value_target_lambda")}


def run_gae(inputs: Data, expected: Data) -> Data:
    mask = torch.tensor(inputs["action_mask"])
    values = torch.tensor(inputs["values"], dtype=F64)
    advantages, targets = gae(terminal_rewards(inputs["reward"], mask), values, mask, **lambdas(inputs))
    assert advantages[~mask].eq(0).all()
    assert targets[~mask].eq(0).all()
    return {"advantages": advantages.tolist(), "targets": targets.tolist()}


def run_gae_branches(inputs: Data, expected: Data) -> Data:
    assert inputs["order"] == "generation"
    values = [torch.tensor(branch, dtype=F64) for branch in inputs["branches_values"]]
    masks = [torch.ones(len(branch), dtype=torch.bool) for branch in values]
    rewards = terminal_rewards_segments(inputs["reward"], masks)
    advantages, targets = gae_segments(rewards, values, masks, semantics=inputs["semantics"], **lambdas(inputs))
    return {"advantages": [a.tolist() for a in advantages], "targets": [t.tolist() for t in targets]}


def run_align_values(inputs: Data, expected: Data) -> Data:
    return {
        "aligned": align_values(torch.tensor(inputs["state_values"], dtype=F64), inputs["sequence_lengths"]).tolist()
    }


def run_token_prefix(inputs: Data, expected: Data) -> Data:
    position, length = inputs["insert_at"], len(inputs["prefix"])
    return {
        "tokens": insert_context(inputs["token_ids"], position, inputs["prefix"]).tolist(),
        "mask": spread_over_context(inputs["mask"], position, length).tolist(),
        "targets": spread_over_context(inputs["targets"], position, length).tolist(),
        "values_projected": project_values(inputs["values_conditioned"], position, length).tolist(),
    }


def run_group_advantages(inputs: Data, expected: Data) -> Data:
    returns = torch.tensor(inputs["rewards"], dtype=F64)
    if "error" in expected:
        with pytest.raises(ValueError, match=expected["error"]):
            group_advantages(returns, inputs["baseline"])
        return expected
    baselines, advantages = group_advantages(returns, inputs["baseline"])
    return {"baselines": baselines.tolist(), "advantages": advantages.tolist()}


def credited_group(batch: Data, *, gamma: float = 1.0, gae_lambda: float = 1.0) -> list[tuple[Any, ...]]:
    """(values, GAE, leave-one-out baseline, mask) of each rollout of a group."""
    loo = group_baselines(torch.tensor(batch["rewards"], dtype=F64), "leave_one_out").tolist()
    rows = []
    for reward, ragged, baseline in zip(batch["rewards"], batch["values"], loo, strict=True):
        values = torch.tensor(ragged, dtype=F64)
        mask = torch.ones(len(values), dtype=torch.bool)
        factors = {"gamma": gamma, "gae_lambda": gae_lambda, "value_target_lambda": 1.0}
        advantages, _ = gae(terminal_rewards(reward, mask), values, mask, **factors)
        rows.append((values, advantages, baseline, mask))
    return rows


def run_tether_advantages(inputs: Data, expected: Data) -> Data:
    rows = credited_group(inputs, gamma=inputs["gamma"], gae_lambda=inputs["gae_lambda"])
    return {
        "loo": [baseline for _, _, baseline, _ in rows],
        "advantages": [tether_advantages(a, v, b, inputs["rho"]).tolist() for v, a, b, _ in rows],
    }


def run_tether_fit(inputs: Data, expected: Data) -> Data:
    sums = TetherSums()
    for values, advantages, baseline, mask in credited_group(inputs):
        sums = sums.merge(tether_sums(*tether_pairs(advantages, values, baseline, mask)))
    if isinstance(inputs["ridge"], list):
        return {"rho": [tether_fit(sums, ridge=ridge) for ridge in inputs["ridge"]]}
    fit = tether_fit(sums, ridge=inputs["ridge"])
    if inputs["clip"] is not None:
        return {"rho_raw": fit, "rho": tether_ema(0.0, fit, decay=0.0, clip=True)}
    names = {"sxx": sums.sxx, "sxy": sums.sxy, "syy": sums.syy, "weight": sums.weight, "rho": fit}
    return names | {"mse_group": sums.mse_group, "mse_fit": sums.mse(fit)}


def run_tether_ema(inputs: Data, expected: Data) -> Data:
    rho, trace = inputs["initial"], []
    for fit in inputs["fits"]:
        rho = tether_ema(rho, fit, decay=inputs["decay"])
        trace.append(rho)
    return {"rho": trace}


def run_tether_sequence(inputs: Data, expected: Data) -> Data:
    controller = TetherController(
        batch_size=inputs["window_rollouts"],
        ridge=inputs["ridge"],
        decay=inputs["decay"],
        clip=inputs["clip"] is not None,
    )
    applied, credited = [], []
    for batch in inputs["batches"]:
        rho = controller.rho
        rows = credited_group(batch)
        applied.append(rho)
        credited.append([tether_advantages(a, v, b, rho).tolist() for v, a, b, _ in rows])
        for values, advantages, baseline, mask in rows:
            controller.observe(*tether_pairs(advantages, values, baseline, mask))
    return {"rho_applied": applied, "advantages": credited}


def run_tether_window(inputs: Data, expected: Data) -> Data:
    controller = TetherController(batch_size=inputs["window_rollouts"], ridge=inputs["ridge"], decay=inputs["decay"])
    controller.restore(controller.state() | {"rho": inputs["initial"]})
    for row in inputs["rollout_rows"]:
        pairs = torch.tensor(row, dtype=F64)
        controller.observe(pairs[:, 0], pairs[:, 1])
    return {"updates": controller.fits, "skipped": controller.skipped, "rho": controller.rho}


def run_explained_variance(inputs: Data, expected: Data) -> Data:
    fit = value_fit(torch.tensor(inputs["predictions"], dtype=F64), torch.tensor(inputs["targets"], dtype=F64))
    return {"ev": fit.value(), "bias": fit.bias, "mse": fit.mse}


def run_two_hot(inputs: Data, expected: Data) -> Data:
    weights = []
    for case in inputs["cases"]:
        target = torch.tensor([case["y"]], dtype=F64)
        row = two_hot(target, low=case["low"], high=case["high"], atoms=case["bins"])[0]
        atoms = torch.linspace(case["low"], case["high"], case["bins"], dtype=F64)
        assert float(row @ atoms) == pytest.approx(case["y"], abs=1e-12)
        weights.append(row.tolist())
    return {"weights": weights}


def run_value_loss(inputs: Data, expected: Data) -> Data:
    logits = torch.tensor([inputs["logits"]], dtype=F64, requires_grad=True)
    target = torch.tensor([inputs["y"]], dtype=F64)
    support = {"low": inputs["low"], "high": inputs["high"]}
    loss = categorical_loss(logits, target, **support)
    loss.sum().backward()
    perfect = two_hot(target, atoms=inputs["bins"], **support).log()
    return {
        "loss": loss.item(),
        "value": categorical_value(logits, **support).item(),
        "grad_logits": logits.grad[0].tolist(),
        "minimum_loss": categorical_loss(perfect, target, **support).item(),
    }


def run_dppo_loss(inputs: Data, expected: Data) -> Data:
    p, q, advantages = (torch.tensor(inputs[key], dtype=F64) for key in ("p_trainer", "p_inference", "advantages"))
    thresholds = {"mask_low": inputs["mask_low"], "mask_high": inputs["mask_high"]}
    kept = dppo_keep(p, q, advantages, **thresholds)
    token_loss = dppo_loss(p.log(), q.log(), advantages, kl_coef=inputs["kl_coef"], **thresholds)
    mask = torch.ones_like(kept)
    dropped = (~kept).double()
    found = {
        "masked": (~kept).tolist(),
        "per_token_loss": token_loss.loss_N.tolist(),
        "loss": token_mean(token_loss.loss_N, mask, action_tokens=inputs["global_tokens"]).item(),
        "is_masked_frac": dropped.mean().item(),
    }
    return {key: found[key] for key in expected}


def run_lambda_from_length(inputs: Data, expected: Data) -> Data:
    return {"gae_lambda": lambda_from_length(inputs["length"], inputs["retained"])}


def run_replay(inputs: Data, expected: Data) -> Data:
    buffer: ReplayBuffer[int] = ReplayBuffer(
        batch_size=inputs["batch_size"],
        capacity=inputs["capacity"],
        refill_size=inputs["refill_size"],
        max_uses=inputs["max_updates"],
    )
    batches, answers = [], []
    for operation in inputs["ops"]:
        if operation == "sample":
            batches.append(list(buffer.sample()))
        elif operation == "can_sample?":
            answers.append(buffer.ready)
        else:
            verb, number = operation.split()
            assert verb == "add"
            buffer.add(int(number), int(number))
    found = {"batches": batches, "can_sample": answers, "size": len(buffer), "ready": buffer.ready}
    counts = {key: getattr(buffer.counts, key) for key in ("admitted", "attempts", "retired", "evicted")}
    return {key: (found | counts)[key] for key in expected}


def run_warmup_gate(inputs: Data, expected: Data) -> Data:
    decisions = [
        ships(versions, live_version=live, warmup_updates=inputs["warmup_updates"])
        for versions, live in zip(inputs["shipped_value_versions"], inputs["live_version"], strict=True)
    ]
    return {"ships": decisions}


ADAPTERS: dict[str, Callable[[Data, Data], Data]] = {
    "gae": run_gae,
    "gae_branches": run_gae_branches,
    "align_values": run_align_values,
    "token_prefix": run_token_prefix,
    "group_advantages": run_group_advantages,
    "tether_advantages": run_tether_advantages,
    "tether_fit": run_tether_fit,
    "tether_ema": run_tether_ema,
    "tether_sequence": run_tether_sequence,
    "tether_window": run_tether_window,
    "explained_variance": run_explained_variance,
    "two_hot": run_two_hot,
    "value_loss": run_value_loss,
    "dppo_loss": run_dppo_loss,
    "lambda_from_length": run_lambda_from_length,
    "replay": run_replay,
    "warmup_gate": run_warmup_gate,
}


def assert_equal(found: Any, expected: Any, where: str) -> None:
    """Numbers to 1e-10 of the printed digits (at most 12 are printed), everything else exactly."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), where
        for key in expected:
            assert_equal(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (f, e) in enumerate(zip(found, expected, strict=True)):
            assert_equal(f, e, f"{where}[{index}]")
    elif isinstance(expected, bool | str) or expected is None:
        assert found == expected, where
    else:
        assert math.isclose(found, expected, rel_tol=1e-10, abs_tol=1e-11), f"{where}: {found} is not {expected}"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: Data) -> None:
    found = ADAPTERS[case["function"]](case["inputs"], case["expected"])
    assert_equal(found, case["expected"], case["name"])


def test_every_case_has_an_adapter_and_every_adapter_a_case() -> None:
    assert len(CASES) == 30
    assert len({case["name"] for case in CASES}) == len(CASES)
    assert {case["function"] for case in CASES} == set(ADAPTERS)


def test_the_comparison_can_fail() -> None:
    with pytest.raises(AssertionError, match=r"x\[1\]"):
        assert_equal([1.0, 2.0], [1.0, 2.0 + 1e-8], "x")
    with pytest.raises(AssertionError):
        assert_equal({"a": np.array(1.0)}, {"a": 1.0, "b": 2.0}, "x")
