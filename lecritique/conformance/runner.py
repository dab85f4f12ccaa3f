"""Runs the cases against a callable and says, case by case, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lecritique.conformance.gae_cases import GAE_CASES, GaeCase, Tier
from lecritique.conformance.request import GaeCallable, GaeRequest, Unsupported

Outcome = Literal["passed", "failed", "not checked"]

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What one case gave; `detail` is a sentence: what was got and expected, or why it was not checked."""

    name: str
    about: str
    tier: Tier
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results, in order."""

    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no case of the equation failed."""
        return not any(result.tier == "equation" for result in self.failures)

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """Failed cases of both tiers."""
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def not_checked(self) -> tuple[CaseResult, ...]:
        """Cases that the function has no way to be asked."""
        return tuple(result for result in self.results if result.outcome == "not checked")

    def text(self) -> str:
        """One line per case, and a second one where something is to be said."""
        lines = []
        for result in self.results:
            grade = "weak" if result.outcome == "failed" and result.tier == "hygiene" else result.outcome
            lines.append(f"{grade:<12}{result.name:<32}{result.about}")
            lines += [f"{'':<12}{result.detail}"] if result.detail else []
        count = len(self.results) - len(self.failures) - len(self.not_checked)
        verdict = "conforms" if self.passed else "does not conform"
        lines.append(
            f"{verdict}: {count} of {len(self.results)} cases passed, {len(self.failures)} failed, "
            f"{len(self.not_checked)} not checked"
        )
        return "\n".join(lines)


def check_gae(
    implementation: GaeCallable, *, cases: Sequence[GaeCase] = GAE_CASES, dtype: torch.dtype = torch.float64
) -> Report:
    """Check a GAE implementation against every case.

    Args:
        implementation: takes a `GaeRequest`, returns advantages and targets [B, T]; raises `Unsupported` for what it
            cannot be asked. Whatever else it raises fails the case and is shown.
        cases: what to check.
        dtype: of rewards and values: float64 (agreement to 1e-9) or float32 (to 1e-5).

    Raises:
        ValueError: another dtype.
    """
    if dtype not in _TOLERANCE:
        raise ValueError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
    return Report(results=tuple(_result(implementation, case, dtype) for case in cases))


def _result(implementation: GaeCallable, case: GaeCase, dtype: torch.dtype) -> CaseResult:
    request = _fresh(case, dtype)
    try:
        advantages, targets = implementation(request)
        fault = _fault(case, request, advantages, targets, case.tolerance or _TOLERANCE[dtype])
    except Unsupported as reason:
        return _named(case, "not checked", str(reason))
    except Exception as error:  # somebody else's code, run to find out what it does: a crash is a result
        return _named(case, "failed", f"raised {type(error).__name__}: {error}")
    return _named(case, "failed", fault) if fault else _named(case, "passed")


def _named(case: GaeCase, outcome: Outcome, detail: str = "") -> CaseResult:
    return CaseResult(name=case.name, about=case.about, tier=case.tier, outcome=outcome, detail=detail)


def _fresh(case: GaeCase, dtype: torch.dtype) -> GaeRequest:
    """The case's request in `dtype`, in tensors of its own: an implementation may write into what it is given."""
    request = case.request
    bootstrap = request.bootstrap_B
    return replace(
        request,
        rewards_BT=request.rewards_BT.to(dtype, copy=True),
        values_BT=request.values_BT.to(dtype, copy=True).requires_grad_(case.differentiable_values),
        action_mask_BT=request.action_mask_BT.clone(),
        bootstrap_B=None if bootstrap is None else bootstrap.to(dtype, copy=True),
    )


def _fault(case: GaeCase, request: GaeRequest, advantages: Tensor, targets: Tensor, tolerance: float) -> str:
    """What is wrong with the answer, empty if nothing is."""
    mask = case.request.action_mask_BT
    for name, found, expected in (("advantages", advantages, case.advantages), ("targets", targets, case.targets)):
        if found.shape != mask.shape:
            return f"{name} have shape {tuple(found.shape)}, expected {tuple(mask.shape)}"
        if case.differentiable_values and found.requires_grad:
            return f"{name} require a gradient"
        if expected is None:
            continue
        got = found.detach()[mask].to(torch.float64)
        right = torch.tensor(expected, dtype=torch.float64)
        if not bool(((got - right).abs() <= tolerance).all()):
            return f"{name} on the action tokens are {_listed(got)}, expected {_listed(right)}"
    return ""


def _listed(column: Tensor) -> str:
    shown = ", ".join(f"{x:.6g}" for x in column[:_SHOWN].tolist())
    return f"[{shown}{', ...' if len(column) > _SHOWN else ''}]"
