"""What `lecritique pretrain-value` does: decide rows and policies, get responses, fit one critic per variant."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lecritique.config.estimators import Discounting
from lecritique.config.resolve import uses_critic
from lecritique.config.schema import RunConfig
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.metrics import null_if_undefined
from lecritique.core.trajectory import ValueSample
from lecritique.credit.schedules import Group
from lecritique.models.value_model import save_value_model
from lecritique.runs.directory import write_json
from lecritique.runtime.build import Base, load_base
from lecritique.runtime.policies import LoadedPolicy, load_policy, require_same_vocabulary
from lecritique.runtime.pretraining import VARIANTS, Fitted, Point, context_of, fit_critic, loss_of, samples_of
from lecritique.runtime.pretraining_data import collected_groups, is_right, saved_groups
from lecritique.tasks.protocol import checked_task
from lecritique.tasks.splits import split_of

SETTINGS, SUMMARY = "pretrain.json", "summary.json"


@dataclass(frozen=True, kw_only=True)
class PretrainWishes:
    """What the command was asked for.

    `policies` or `rollouts` (a run with saved ones), by default the recipe's own model; `size` responses of each policy
    to each problem; `held_out` is the share of the problems that no critic is fitted on, where the recipe keeps none;
    `rows` problems to fit on at most and `held_out_rows` to measure on, 0 for all.
    """

    policies: tuple[str, ...] = ()
    rollouts: Path | None = None
    variants: tuple[str, ...] = VARIANTS
    epochs: int = 2
    size: int = 8
    rows: int = 0
    held_out_rows: int = 0
    held_out: float = 0.2
    measurements: int = 8
    balance: bool = True
    most_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainPlan:
    """Everything that is decided before the first response."""

    base: Base
    policies: tuple[LoadedPolicy, ...]
    train_rows: tuple[int, ...]
    held_out_rows: tuple[int, ...]
    wishes: PretrainWishes
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Responses:
    """The responses to both parts of the problems, and what was counted on the way."""

    train: list[Group]
    held_out: list[Group]
    counts: dict[str, Any]


def plan_pretraining(config: RunConfig, wishes: PretrainWishes) -> PretrainPlan:
    """Load environment, model and policies, and part the problems by what they ask.

    Args:
        config: composed and not resolved.
        wishes: of the command.

    Raises:
        ConfigurationError: settings that make no sense; both are named.
        DataError: no problem to fit on, or none to measure on.
    """
    _require_sensible(config, wishes)
    fraction = config.data.evaluation_fraction or wishes.held_out
    critic = config.critic.model_copy(update={"context": context_of(config, "privileged"), "loss": loss_of(config)})
    # All usable rows: both parts are subject to the same rules on lengths.
    data = config.data.model_copy(update={"evaluation_fraction": 0.0})
    run = config.run.model_copy(update={"eval_every": 0})
    base = load_base(config.model_copy(update={"critic": critic, "data": data, "run": run}))
    parted: dict[str, list[int]] = {"train": [], "evaluation": []}
    for row in base.data.rows:
        parted[split_of(checked_task(base.environment, row), evaluation_fraction=fraction)].append(row)
    for part, rows in parted.items():
        if not rows:
            raise DataError(
                f"no problem is left in the {part} part of {len(base.data.rows)}, of which {fraction} are held out."
            )
    policies = _policies(base, wishes)
    train, held_out = parted["train"], parted["evaluation"]
    plan_rows = tuple(train[: wishes.rows or None]), tuple(held_out[: wishes.held_out_rows or None])
    return PretrainPlan(
        base=base,
        policies=policies,
        train_rows=plan_rows[0],
        held_out_rows=plan_rows[1],
        wishes=wishes,
        settings=_settings(base, policies, wishes, fraction, plan_rows),
    )


def responses_of(
    plan: PretrainPlan, folder: Path, *, on_part: Callable[[int, int], None] = lambda done, parts: None
) -> Responses:
    """Responses to both parts: collected into `folder`, as far as they are not there, or read from a run.

    Raises:
        DataError: the run's saved rollouts leave one part without a response.
        RoleFailure: a policy could not generate.
    """
    wishes = plan.wishes
    if wishes.rollouts is not None:
        groups, failed = saved_groups(plan.base, wishes.rollouts), 0
        rollouts = sum(len(group.trajectories) for group in groups)
    else:
        groups, counts = collected_groups(
            plan.base,
            plan.policies,
            [*plan.train_rows, *plan.held_out_rows],
            size=wishes.size,
            folder=folder,
            on_part=on_part,
        )
        rollouts, failed = counts.rollouts, counts.failed
    parts = [[g for g in groups if g.group_id.row in rows] for rows in map(set, (plan.train_rows, plan.held_out_rows))]
    for name, part in zip(("fitted", "measured"), parts, strict=True):
        if not any(trajectory.action_tokens for group in part for trajectory in group.trajectories):
            raise DataError(f"there is no response to any of the problems that critics are {name} on.")
    return Responses(
        train=parts[0],
        held_out=parts[1],
        counts={
            "rollouts": rollouts,
            "failed": failed,
            "truncated": sum(t.truncated for group in groups for t in group.trajectories),
            "right_fraction": {
                "train": _right_fraction(plan.base, parts[0]),
                "held_out": _right_fraction(plan.base, parts[1]),
            },
        },
    )


def fit_variants(
    plan: PretrainPlan, responses: Responses, out: Path, *, on_point: Callable[[str, Point], None] = lambda v, p: None
) -> dict[str, Fitted]:
    """Fit each variant on the same responses, and save it in `out`/VARIANT/critic with its curve beside it.

    Raises:
        DataError: a task without what the privileged critic reads.
        DivergenceError: a loss or gradient that is not finite.
    """
    wishes = plan.wishes
    parts = [_alike(plan.base, groups, wishes.variants) for groups in (responses.train, responses.held_out)]
    found = {}
    for variant in wishes.variants:
        fitted = fit_critic(
            plan.base,
            parts[0][variant],
            parts[1][variant],
            epochs=wishes.epochs,
            measurements=wishes.measurements,
            balance=wishes.balance,
            most_seconds=wishes.most_seconds,
            on_point=lambda point, variant=variant: on_point(variant, point),  # type: ignore[misc]
        )
        save_value_model(fitted.model, out / variant / "critic")
        write_json(out / variant / "curve.json", [_plain(asdict(point)) for point in fitted.curve])
        found[variant] = fitted
    return found


def _alike(base: Base, groups: Sequence[Group], variants: Sequence[str]) -> dict[str, list[ValueSample]]:
    """The samples of each variant; a response that one of them cannot read is left out of all."""
    made = {variant: samples_of(base, groups, variant) for variant in variants}
    common = set.intersection(*({_key(sample) for sample in samples} for samples in made.values()))
    return {variant: [s for s in samples if _key(s) in common] for variant, samples in made.items()}


def _key(sample: ValueSample) -> tuple[Any, int]:
    return sample.rollout_id, sample.trajectories[0].segment_index


def _require_sensible(config: RunConfig, wishes: PretrainWishes) -> None:
    if not uses_critic(config):
        raise ConfigurationError(
            f"'estimator.type' = '{config.estimator.type}' trains no critic, so its recipe does not say how; give "
            "another --arm, such as pvf."
        )
    if isinstance(config.estimator, Discounting) and config.estimator.gamma != 1.0:
        raise ConfigurationError(
            f"critics are pretrained towards the return itself: 'estimator.gamma' = {config.estimator.gamma}, "
            "expected 1.0."
        )
    for variant in wishes.variants:
        if variant not in VARIANTS:
            raise ConfigurationError(f"--variants: there is no variant '{variant}'; known: {', '.join(VARIANTS)}.")
    if not wishes.variants or len(set(wishes.variants)) < len(wishes.variants):
        raise ConfigurationError(f"--variants: expected each variant once, got {','.join(wishes.variants) or 'none'}.")
    if wishes.policies and wishes.rollouts is not None:
        raise ConfigurationError("--policies and --rollouts are two sources of responses; give one of them.")


def _policies(base: Base, wishes: PretrainWishes) -> tuple[LoadedPolicy, ...]:
    own = LoadedPolicy(source=base.config.model.name, language=base.language, run=None, step=None)
    if wishes.rollouts is not None:
        return ()
    if not wishes.policies:
        return (own,)
    dtype, device = getattr(torch, base.config.runtime.dtype), str(base.language.model.device)
    found = tuple(load_policy(source, dtype=dtype, device=device) for source in wishes.policies)
    for policy in found:
        require_same_vocabulary(own, policy)
    return found


def _settings(
    base: Base,
    policies: Sequence[LoadedPolicy],
    wishes: PretrainWishes,
    fraction: float,
    rows: tuple[tuple[int, ...], tuple[int, ...]],
) -> dict[str, Any]:
    config = base.config
    wanted = asdict(wishes)
    wanted["rollouts"] = None if wishes.rollouts is None else str(wishes.rollouts)
    wanted["most_seconds"] = null_if_undefined(wishes.most_seconds)
    del wanted["policies"]
    return {
        "policies": {str(Path(policy.source)): policy.digest for policy in policies},
        "wanted": wanted,
        "held_out_fraction": fraction,
        "problems": {"train": len(rows[0]), "held_out": len(rows[1])},
        "config": {
            name: json.loads(getattr(config, name).model_dump_json())
            for name in ("task", "model", "sampling", "critic", "data")
        }
        | {"seed": config.run.seed, "dtype": config.runtime.dtype},
    }


def _right_fraction(base: Base, groups: Sequence[Group]) -> float | None:
    right = [is_right(t, base.environment.reward_range) for group in groups for t in group.trajectories]
    return float(np.mean(right)) if right else None


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {key: null_if_undefined(value) if isinstance(value, float) else value for key, value in record.items()}
