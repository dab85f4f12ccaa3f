"""Surrogate, fusion, distillation and histogram equations as plain Python over numbers, from the method sheet alone."""

from __future__ import annotations

import math

Floats = list[float]


def ppo_loop(lp: float, lp_old: float, lq: float, advantage: float, low: float, high: float, cap: float) -> float:
    ratio = math.exp(lp - lp_old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    return -min(math.exp(lp_old - lq), cap) * min(ratio * advantage, clipped * advantage)


def vaspo_loop(advantage: float, gap: float, eps_w: float, tau: float, delta: float, masked: bool) -> float:
    weight = min(max(math.exp(gap), 1 - eps_w), 1 + eps_w)
    gate = 1 if not masked or (advantage > 0 and abs(math.tanh(gap / tau)) > delta) else 0
    return advantage * (1 + gate * (weight - 1))


def rlsd_loop(advantage: float, gap: float, eps_w: float, mix: float) -> float:
    sign = (advantage > 0) - (advantage < 0)
    weight = min(max(math.exp(sign * gap), 1 - eps_w), 1 + eps_w)
    return advantage * ((1 - mix) + mix * weight)


def whiten_loop(advantages: Floats) -> Floats:
    mean = sum(advantages) / len(advantages)
    variance = sum((a - mean) ** 2 for a in advantages) / len(advantages)
    return [(a - mean) / math.sqrt(variance + 1e-8) for a in advantages]


def clipped_mse_loop(value: float, old: float, target: float, eps: float) -> tuple[float, bool]:
    held = min(max(value, old - eps), old + eps)
    plain, clipped = (value - target) ** 2, (held - target) ** 2
    return 0.5 * max(plain, clipped), clipped > plain


def hl_gauss_loop(target: float, low: float, high: float, atoms: int, sigma_bins: float) -> Floats:
    width = (high - low) / (atoms - 1)

    def below(edge: float) -> float:
        return 0.5 * (1 + math.erf((edge - target) / (sigma_bins * width) / math.sqrt(2)))

    centres = [low + k * width for k in range(atoms)]
    masses = [below(z + width / 2) - below(z - width / 2) for z in centres]
    return [mass / sum(masses) for mass in masses]


def softmax_loop(logits: Floats) -> Floats:
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / sum(weights) for w in weights]


def divergence_loop(student: Floats, teacher: Floats, kind: str, beta: float) -> float:
    p, q = softmax_loop(student), softmax_loop(teacher)

    def kl(a: Floats, b: Floats) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    if kind == "forward_kl":
        return kl(q, p)
    if kind == "reverse_kl":
        return kl(p, q)
    m = [beta * y + (1 - beta) * x for x, y in zip(p, q, strict=True)]
    return beta * kl(q, m) + (1 - beta) * kl(p, m)


def bucket_fit_loop(rollouts: list[list[tuple[float, float]]], bucket: int, buckets: int, ridge: float) -> float | None:
    sxx = sxy = syy = 0.0
    for pairs in rollouts:
        for position, (x, y) in enumerate(pairs):
            if min(position // 1024, buckets - 1) == bucket:
                sxx, sxy, syy = sxx + x * x, sxy + x * y, syy + y * y
    return sxy / (sxx + ridge * max(sxx, syy)) if sxx else None
