"""Counts what a run spends, by what its roles say that they have read; the totals survive a resume.

Generation is counted by the rollouts that ended, failed, replaced and stale ones among them; value scoring, teacher and
training by the sequences that were read. The formula is that of `numerics.flops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lecritique.config.schema import BudgetSection
from lecritique.core.rollout import Rollout
from lecritique.core.spending import Reading, Spent
from lecritique.credit.schedules import Learner
from lecritique.models.size import ModelSize, policy_size, value_size

# What the estimate is made of, in the order of a step; each is a metric.
PARTS = ("flops_generation", "flops_value_scoring", "flops_value_training", "flops_teacher", "flops_policy_training")


class Spending:
    """Totals of one run.

    Args:
        learner: whose roles count what they read.
        budget: what may be spent.
    """

    def __init__(self, learner: Learner, budget: BudgetSection) -> None:
        self._learner = learner
        self._limits = limits_of(budget)
        self._policy: ModelSize = policy_size(learner.policy.model)
        self._critic = value_size(learner.values.trainer.model) if learner.values else None
        self._generated = Reading()
        self._rollouts = 0
        self._sampled = 0
        self._seen = self._flops_here()
        self._at_last_step = (0, dict.fromkeys(PARTS, 0))
        self._total = Spent()
        self._exhausted = False
        self._of_parts = dict.fromkeys(PARTS, 0)

    @property
    def total(self) -> Spent:
        """All that was spent up to the last step."""
        return self._total

    @property
    def exhausted(self) -> bool:
        """Whether the last step reached a limit; what is spent behind it counts for the next one."""
        return self._exhausted

    def played(self, rollouts: Sequence[Rollout]) -> None:
        """These rollouts have ended, whatever becomes of them."""
        lengths = []
        for rollout in rollouts:
            sampled = sum(len(turn.completion.token_ids) for turn in rollout.turns)
            self._sampled += sampled
            lengths.append(sampled + sum(len(turn.given_ids) for turn in rollout.turns))
        self._rollouts += len(rollouts)
        self._generated.add(lengths)

    def step(self, seconds: float) -> dict[str, float]:
        """Metrics of a step that took so many seconds: its own share and the totals so far."""
        self._collect(seconds)
        self._exhausted = self._total.share_of(self._limits) >= 1.0
        tokens, parts = self._at_last_step
        self._at_last_step = (self._total.tokens, dict(self._of_parts))
        return {
            "generated_tokens": float(self._total.tokens - tokens),
            **{name: float(self._of_parts[name] - parts[name]) for name in PARTS},
            "rollouts_total": float(self._total.rollouts),
            "generated_tokens_total": float(self._total.tokens),
            "flops_total": float(self._total.flops),
            "seconds_total": self._total.seconds,
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint, ready for JSON; work since the last step is in it."""
        self._collect(0.0)
        tokens, parts = self._at_last_step
        return {
            **self._total.record(),
            "parts": dict(self._of_parts),
            "at_last_step": {"tokens": tokens, "parts": dict(parts)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state."""
        self._total = Spent.of(state)
        self._exhausted = self._total.share_of(self._limits) >= 1.0
        self._of_parts = {name: int(state["parts"][name]) for name in PARTS}
        last = state["at_last_step"]
        self._at_last_step = (int(last["tokens"]), {name: int(last["parts"][name]) for name in PARTS})

    def _collect(self, seconds: float) -> None:
        """Add what was spent since the last look."""
        here = self._flops_here()
        for name in PARTS:
            self._of_parts[name] += here[name] - self._seen[name]
        self._seen = here
        self._total = Spent(
            rollouts=self._total.rollouts + self._rollouts,
            tokens=self._total.tokens + self._sampled,
            flops=sum(self._of_parts.values()),
            seconds=self._total.seconds + seconds,
        )
        self._rollouts = self._sampled = 0

    def _flops_here(self) -> dict[str, int]:
        """By part, since this process began the run."""
        policy, values = self._learner.policy, self._learner.values
        told = policy.teacher.read if policy.teacher else Reading()
        found = {
            "flops_generation": _forward(self._policy, self._generated),
            "flops_value_scoring": 0,
            "flops_value_training": 0,
            "flops_teacher": _forward(self._policy, told),
            "flops_policy_training": _forward(self._policy, policy.read) + _training(self._policy, policy.trained),
        }
        if values is not None and self._critic is not None:
            found["flops_value_scoring"] = _forward(self._critic, values.scored)
            found["flops_value_training"] = _training(self._critic, values.trainer.trained)
        return found


def limits_of(budget: BudgetSection) -> dict[str, float]:
    """The limits by unit, those that are set."""
    every = {
        "rollouts": budget.rollouts,
        "tokens": budget.tokens,
        "flops": budget.flops,
        "seconds": budget.seconds,
    }
    return {unit: limit for unit, limit in every.items() if limit}


def _forward(size: ModelSize, reading: Reading) -> int:
    return size.forward(reading.tokens, reading.pairs)


def _training(size: ModelSize, reading: Reading) -> int:
    return size.training(reading.tokens, reading.pairs)
