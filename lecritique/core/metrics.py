"""Metrics that know how they are reduced, and the catalog of those that runs write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from lecritique.core.moments import Moments


class Metric(Protocol):
    """A mergeable quantity with one value."""

    def value(self) -> float:
        """The reduced value; NaN when nothing was observed."""
        ...


@dataclass(frozen=True)
class Mean:
    """Sum over count: merges exactly, unlike an average of averages."""

    total: float = 0.0
    count: float = 0.0

    def merge(self, other: Mean) -> Mean:
        """The mean over both."""
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float:
        """Total / count."""
        return self.total / self.count if self.count else math.nan


@dataclass(frozen=True)
class Max:
    """The largest value seen."""

    largest: float = -math.inf

    def merge(self, other: Max) -> Max:
        """The larger of both."""
        return Max(max(self.largest, other.largest))

    def value(self) -> float:
        """The largest, NaN of nothing."""
        return self.largest if self.largest > -math.inf else math.nan


@dataclass(frozen=True)
class Last:
    """The latest value."""

    latest: float = math.nan

    def merge(self, other: Last) -> Last:
        """The other one, which came later."""
        return other

    def value(self) -> float:
        """The latest."""
        return self.latest


@dataclass(frozen=True)
class Quantile:
    """One quantile of all observations, kept in full (batches are small enough)."""

    q: float
    observed: tuple[float, ...] = ()

    def merge(self, other: Quantile) -> Quantile:
        """The quantile over both."""
        if other.q != self.q:
            raise ValueError(f"cannot merge the {self.q} and the {other.q} quantile")
        return Quantile(self.q, self.observed + other.observed)

    def value(self) -> float:
        """Linear-interpolated quantile."""
        return float(np.quantile(self.observed, self.q)) if self.observed else math.nan


@dataclass(frozen=True)
class ValueFit:
    """Predictions against targets: explained variance, bias and mean squared error (LC 4.3), pooled.

    EV = 1 - Var(G - V) / Var(G) with population variances; NaN when Var(G) < 1e-12.
    """

    error: Moments = field(default_factory=Moments)
    target: Moments = field(default_factory=Moments)

    def merge(self, other: ValueFit) -> ValueFit:
        """The fit over both: pooled moments, never an average of averages."""
        return ValueFit(self.error.merge(other.error), self.target.merge(other.target))

    def value(self) -> float:
        """Explained variance."""
        if self.target.count == 0 or self.target.variance < 1e-12:
            return math.nan
        return 1.0 - self.error.variance / self.target.variance

    @property
    def bias(self) -> float:
        """Mean of V - G, in reward units."""
        return -self.error.mean if self.error.count else math.nan

    @property
    def mse(self) -> float:
        """Mean of (V - G)^2."""
        if not self.error.count:
            return math.nan
        return self.error.m2 / self.error.count + self.error.mean**2


Role = Literal["rollout", "policy", "critic", "run", "runtime", "evaluation"]


@dataclass(frozen=True)
class MetricSpec:
    """What a metric column means."""

    role: Role
    unit: str
    text: str


CATALOG: Mapping[str, MetricSpec] = {
    "reward": MetricSpec("rollout", "reward", "mean reward of the step's valid rollouts, replaced ones too"),
    "rollouts": MetricSpec("rollout", "count", "rollouts of the step, failed and replaced ones included"),
    "rollouts_failed": MetricSpec("rollout", "count", "rollouts without a reward"),
    "groups_dropped": MetricSpec("rollout", "count", "groups that shrank below what their baseline needs"),
    "groups_resampled": MetricSpec(
        "rollout", "count", "groups of equal rewards that others were asked for in place of"
    ),
    "groups_without_variance": MetricSpec("rollout", "count", "groups of equal rewards left in the batch after that"),
    "groups_too_long": MetricSpec("critic", "count", "groups left out as their siblings are too long for the critic"),
    "contexts_trimmed": MetricSpec("critic", "count", "rollouts whose siblings were cut to the context's token limit"),
    "truncated_fraction": MetricSpec("rollout", "fraction", "rollouts cut by a token limit"),
    "response_tokens": MetricSpec("rollout", "tokens", "mean action tokens of a rollout"),
    "turns": MetricSpec("rollout", "count", "mean turns of a rollout"),
    "tokens_per_second": MetricSpec("rollout", "tokens/s", "sampled tokens over the seconds of generation"),
    "policy_loss": MetricSpec("policy", "", "mean policy loss of the batch's optimizer steps"),
    "policy_grad_norm": MetricSpec("policy", "", "gradient norm before clipping, of the batch's last optimizer step"),
    "policy_learning_rate": MetricSpec("policy", "", "learning rate of the step"),
    "policy_steps": MetricSpec("policy", "count", "optimizer steps so far"),
    "policy_batches_withheld": MetricSpec("policy", "count", "batches discarded so far during critic warm-up"),
    "policy_batches_empty": MetricSpec("policy", "count", "batches so far with nothing to train on"),
    "ratio_mean": MetricSpec("policy", "", "mean of exp(trainer - sampler log-prob)"),
    "sampler_gap_nats": MetricSpec("policy", "nats", "largest |trainer - sampler log-prob| of a token"),
    "dropped_fraction": MetricSpec(
        "policy", "fraction", "action tokens whose policy-gradient term was dropped (DPPO) or clipped (PPO)"
    ),
    "update_gap_nats": MetricSpec(
        "policy", "nats", "largest |log-prob of a token now - before the batch's first step|"
    ),
    "rollout_weight_mean": MetricSpec("policy", "", "mean weight that corrects for the sampler, after its cap"),
    "advantage_mean": MetricSpec(
        "policy", "reward", "mean advantage over action tokens, before modulation and whitening"
    ),
    "advantage_std": MetricSpec("policy", "reward", "population standard deviation of the advantages"),
    "teacher_gap_mean_nats": MetricSpec("policy", "nats", "mean of teacher - student log-prob of the sampled tokens"),
    "teacher_gap_abs_nats": MetricSpec("policy", "nats", "mean of |teacher - student log-prob|"),
    "gate_open_fraction": MetricSpec("policy", "fraction", "action tokens on which the fusion gate is open"),
    "modulation_weight_mean": MetricSpec(
        "policy", "", "mean factor on the advantages that are not 0, over the teacher's modulation"
    ),
    "fusion_strength": MetricSpec(
        "policy", "", "sum of |change of the advantages by the teacher| / sum of |advantage|"
    ),
    "opsd_divergence": MetricSpec("policy", "nats", "mean divergence from the teacher over action tokens"),
    "staleness_max": MetricSpec("policy", "versions", "largest age of a trained trajectory"),
    "explained_variance": MetricSpec("critic", "", "EV of the critic's values from before it trained on the batch"),
    "explained_variance_post_update": MetricSpec(
        "critic", "", "EV of the values that credited the batch, of a critic that has trained on it"
    ),
    "value_bias": MetricSpec("critic", "reward", "mean of value minus target"),
    "value_mse": MetricSpec("critic", "reward^2", "mean squared error of values"),
    "value_loss": MetricSpec("critic", "", "mean value loss of this step's critic updates"),
    "value_grad_norm": MetricSpec("critic", "", "gradient norm of the last critic update"),
    "value_clip_fraction": MetricSpec(
        "critic", "fraction", "action tokens of the last critic update whose clipped loss term was strictly the larger"
    ),
    "value_learning_rate": MetricSpec("critic", "", "learning rate of the last critic update"),
    "value_version": MetricSpec("critic", "version", "critic version that scored the batch"),
    "value_updates": MetricSpec("critic", "count", "critic updates so far"),
    "replay_size": MetricSpec("critic", "rollouts", "rollouts held in replay"),
    "replay_evicted": MetricSpec("critic", "rollouts", "rollouts evicted from replay or its queue so far"),
    "gae_lambda": MetricSpec("critic", "", "lambda of the batch's advantages, mean over responses"),
    "rho": MetricSpec("critic", "", "Tether coefficient of the batch; by position: mean over its action tokens"),
    "rho_fit": MetricSpec("critic", "", "latest unclipped Tether fit; by position: mean over the buckets that fitted"),
    "rho_skipped": MetricSpec("critic", "count", "Tether fits skipped so far; by position: of all buckets"),
    "evpo_uses_critic": MetricSpec("critic", "0 or 1", "whether EVPO used the critic for the batch"),
    "engine_restarts": MetricSpec(
        "runtime", "count", "engine replicas started in place of failed ones in the run so far"
    ),
    "staleness_mean": MetricSpec("runtime", "versions", "mean age of the batch's groups, from their oldest token"),
    "groups_stale": MetricSpec("runtime", "count", "groups that became too old since the step before"),
    "groups_open": MetricSpec("runtime", "count", "groups asked for that have no outcome yet"),
    "groups_ready": MetricSpec("runtime", "count", "scored groups that wait for the next batch"),
    "value_version_lag": MetricSpec(
        "runtime", "versions", "critic updates made beyond the version that scored the batch"
    ),
    "seconds_waiting_values": MetricSpec("runtime", "s", "time in which the policy was idle for want of values alone"),
    "evaluator_latency_p50_seconds": MetricSpec("runtime", "s", "median time from a value request to its answer"),
    "evaluator_latency_p99_seconds": MetricSpec("runtime", "s", "99th percentile of the same"),
    "evaluator_batch_fill": MetricSpec("runtime", "fraction", "mean share of its token limit that a value batch had"),
    "evaluator_queue_depth": MetricSpec("runtime", "count", "value requests waiting at the end of the step"),
    "evaluator_overloaded": MetricSpec("runtime", "count", "value requests turned away and made again, in the step"),
    "evaluator_swaps": MetricSpec("runtime", "count", "changes of the served critic version in the step"),
    "utilisation_rollout": MetricSpec("runtime", "fraction", "share of the step in which the rollout engine worked"),
    "utilisation_policy": MetricSpec("runtime", "fraction", "share of the step in which the policy trainer worked"),
    "utilisation_critic": MetricSpec("runtime", "fraction", "share of the step in which the value trainer worked"),
    "utilisation_evaluator": MetricSpec("runtime", "fraction", "share of the step in which the value evaluator worked"),
    "utilisation_orchestrator": MetricSpec("runtime", "fraction", "share of the step spent on credit and contexts"),
    "evaluation_score": MetricSpec("evaluation", "reward", "avg@K after the step, sets weighted equally"),
    "evaluation_pass_at_k": MetricSpec("evaluation", "fraction", "pass@K after the step, sets weighted equally"),
    "evaluation_failed": MetricSpec("evaluation", "count", "samples that failed and count as wrong"),
    "evaluation_truncated_fraction": MetricSpec("evaluation", "fraction", "samples cut by a token limit"),
    "evaluation_unread_fraction": MetricSpec(
        "evaluation", "fraction", "samples in which no answer was found, where the task can tell"
    ),
    "seconds_evaluation": MetricSpec("evaluation", "s", "wall time of the evaluation after the step"),
    "generated_tokens": MetricSpec("run", "tokens", "sampled since the step before, also in rollouts not trained on"),
    "flops_generation": MetricSpec("run", "FLOPs", "estimated arithmetic of sampling since the step before"),
    "flops_value_scoring": MetricSpec("run", "FLOPs", "the same of scoring values"),
    "flops_value_training": MetricSpec("run", "FLOPs", "the same of the critic's updates"),
    "flops_teacher": MetricSpec("run", "FLOPs", "the same of scoring by the teacher"),
    "flops_policy_training": MetricSpec("run", "FLOPs", "the same of the policy's updates and its log-probs before"),
    "rollouts_total": MetricSpec("run", "count", "rollouts so far, failed, replaced and stale ones included"),
    "generated_tokens_total": MetricSpec("run", "tokens", "sampled tokens so far"),
    "flops_total": MetricSpec("run", "FLOPs", "estimated arithmetic so far, all roles"),
    "seconds_total": MetricSpec("run", "s", "wall time of all steps so far, without time off and evaluation"),
    "seconds": MetricSpec("run", "s", "wall time of the step"),
    "seconds_rollout": MetricSpec("run", "s", "wall time of generation and environments"),
    "seconds_values": MetricSpec("run", "s", "wall time of value scoring"),
    "seconds_policy": MetricSpec("run", "s", "wall time of the policy update"),
    "seconds_critic": MetricSpec("run", "s", "wall time of the critic updates"),
}


def null_if_undefined(value: float | None) -> float | None:
    """JSON has no NaN: undefined becomes null."""
    return None if value is None or not math.isfinite(value) else float(value)
