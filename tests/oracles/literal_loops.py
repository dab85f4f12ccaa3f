"""The equations as plain Python loops over lists: slow, obvious, and written from the method sheet alone."""

from __future__ import annotations

import math

Floats = list[float]


def gae_loop(
    rewards: Floats, values: Floats, mask: list[bool], gamma: float, lam: float, bootstrap: float = 0.0
) -> Floats:
    """A_t = delta_t + gamma lam A_{t+1} over action tokens, walking backwards; 0 elsewhere."""
    advantages = [0.0] * len(values)
    next_value, next_advantage = bootstrap, 0.0
    for t in range(len(values) - 1, -1, -1):
        if not mask[t]:
            continue
        delta = rewards[t] + gamma * next_value - values[t]
        advantages[t] = delta + gamma * lam * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages


def baselines_loop(returns: Floats, leave_one_out: bool) -> Floats:
    out = []
    for i, own in enumerate(returns):
        others = [r for j, r in enumerate(returns) if not math.isnan(r) and not (leave_one_out and j == i)]
        out.append(math.nan if math.isnan(own) else sum(others) / len(others))
    return out


def tether_fit_loop(rows: list[list[tuple[float, float]]], ridge: float) -> float:
    sxx = sxy = syy = 0.0
    for row in rows:
        for x, y in row:
            sxx += x * x
            sxy += x * y
            syy += y * y
    return sxy / (sxx + ridge * max(sxx, syy))


def dppo_loop(lp: float, lq: float, advantage: float, low: float, high: float, kl_coef: float) -> float:
    p, q = math.exp(lp), math.exp(lq)
    keep = 1.0
    if advantage > 0 and p - q > high:
        keep = 0.0
    if advantage <= 0 and p - q < -low:
        keep = 0.0
    return -keep * advantage * (p / q) + kl_coef * (lp - lq) ** 2


def two_hot_loop(target: float, low: float, high: float, atoms: int) -> Floats:
    width = (high - low) / (atoms - 1)
    weights = [0.0] * atoms
    below = min(int((target - low) / width), atoms - 2)
    above_share = (target - (low + below * width)) / width
    weights[below] = 1.0 - above_share
    weights[below + 1] = above_share
    return weights


def cross_entropy_loop(logits: Floats, weights: Floats) -> float:
    largest = max(logits)
    log_total = largest + math.log(sum(math.exp(x - largest) for x in logits))
    return -sum(w * (x - log_total) for w, x in zip(weights, logits, strict=True))


def explained_variance_loop(values: Floats, targets: Floats) -> float:
    errors = [g - v for g, v in zip(targets, values, strict=True)]
    return 1.0 - _variance(errors) / _variance(targets)


def _variance(numbers: Floats) -> float:
    mean = sum(numbers) / len(numbers)
    return sum((x - mean) ** 2 for x in numbers) / len(numbers)
