"""One rollout batch from scores to updates: what is trained when, on what, and what stays out."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from scored import random_group
from small_models import small_policy

from lecritique.config.estimators import GroupMean, LeaveOneOut, OptimizerConfig, Tether, Value
from lecritique.config.losses import Bce, ClippedMse, Ppo
from lecritique.config.schema import PolicySection
from lecritique.core.metrics import CATALOG, ValueFit
from lecritique.core.moments import Moments
from lecritique.core.task import Message, Reference, Task
from lecritique.core.trajectory import ContextInsertion, ValueSample
from lecritique.credit.crediting import Crediting
from lecritique.credit.schedules import Group, Learner, score_then_train, scored_groups, value_samples
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.system import ValueSystem
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.trainer import PolicyTrainer

SIZE = 4


def group(seed: int, *, size: int = SIZE, silent: bool = False) -> Group:
    members = random_group(seed, row=seed, size=size).trajectories
    if silent:
        members = tuple(dataclasses.replace(t, action_mask=np.zeros(len(t), dtype=bool)) for t in members)
    task = Task(
        task_id=f"row-{seed}", messages=(Message(role="user", content="q"),), reference=Reference(answer=str(seed))
    )
    return Group(group_id=members[0].group_id, task=task, trajectories=members)


def context_of(task: Task) -> ContextInsertion:
    """A context that depends on the task."""
    number = int(task.task_id.removeprefix("row-"))
    return ContextInsertion(position=0, token_ids=np.array([number % 7, 1 + number % 11]))


class OfTheTask:
    """A context builder that needs no siblings."""

    needs_siblings = False

    def __init__(self, made=context_of) -> None:
        self.made = made

    def __call__(self, task: Task, siblings=()) -> ContextInsertion | None:
        assert siblings == ()
        return self.made(task)


def learner(
    estimator,
    *,
    warmup_updates: int = 0,
    ship: bool = False,
    context=None,
    batch: int = 8,
    value_loss=None,
    **policy_section,
) -> Learner:
    store, policy = MemoryWeightStore(), small_policy()
    values = None
    if estimator.type in ("value", "tether", "evpo"):
        models = [ValueModel.from_policy(policy, value_loss or Bce(), seed=3) for _ in range(2)]
        values = ValueSystem(
            evaluator=ValueEvaluator(models[0], store, max_tokens=1000, context_length=100),
            trainer=ValueTrainer(models[1], OptimizerConfig(learning_rate=1e-2), store, max_tokens=1000),
            replay=ReplayBuffer(batch_size=batch, max_uses=1),
            updates_per_step=1,
        )
    config = PolicySection(optimizer=OptimizerConfig(learning_rate=1e-3), **policy_section)
    return Learner(
        policy=PolicyTrainer(policy, config, store, temperature=1.0, max_tokens=1000),
        crediting=Crediting(estimator, value_target_lambda=1.0, batch_size=batch, warmup_updates=warmup_updates),
        values=values,
        context=(context or OfTheTask()) if values else OfTheTask(lambda task: None),
        warmup_updates=warmup_updates,
        ship_while_cold=ship,
    )


def batch_of(step: int) -> list[Group]:
    return [group(2 * step), group(2 * step + 1)]


def weights(one: Learner) -> dict[str, torch.Tensor]:
    return copy.deepcopy(one.policy.model.state_dict())


def moved(one: Learner, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(tensor, before[name]) for name, tensor in one.policy.model.state_dict().items())


def test_warm_up_discards_policy_batches_while_the_critic_trains() -> None:
    one = learner(Value(), warmup_updates=2)
    before = weights(one)
    for step in range(2):
        outcome = score_then_train(one, batch_of(step))
        assert not outcome.trained and not moved(one, before)
        assert outcome.metrics["policy_batches_withheld"] == step + 1 and outcome.metrics["policy_steps"] == 0
        assert outcome.metrics["value_updates"] == step + 1 and outcome.metrics["value_version"] == step
        assert "policy_loss" not in outcome.metrics
    outcome = score_then_train(one, batch_of(2))
    assert outcome.trained and moved(one, before)
    assert (outcome.metrics["policy_steps"], outcome.metrics["policy_batches_withheld"]) == (1, 2)
    assert {m.estimator for m in outcome.credit.members} == {"value"}


def test_warm_up_by_leave_one_out_ships_what_plain_leave_one_out_would() -> None:
    one, plain = learner(Tether(), warmup_updates=2, ship=True), learner(LeaveOneOut())
    for step in range(2):
        outcome, other = score_then_train(one, batch_of(step)), score_then_train(plain, batch_of(step))
        assert outcome.trained and outcome.metrics["policy_batches_withheld"] == 0
        assert outcome.metrics["policy_loss"] == other.metrics["policy_loss"]
        assert outcome.metrics["value_updates"] == step + 1
    for name, tensor in one.policy.model.state_dict().items():
        assert torch.equal(tensor, plain.policy.model.state_dict()[name])
    outcome = score_then_train(one, batch_of(2))
    assert {m.estimator for m in outcome.credit.members} == {"tether"}


@pytest.mark.parametrize("ship", [False, True])
def test_groups_of_one_warm_the_critic_up(ship: bool) -> None:
    one = learner(Value(), warmup_updates=1, ship=ship, batch=2)
    before = weights(one)
    outcome = score_then_train(one, [group(0, size=1), group(1, size=1)])
    assert outcome.metrics["value_updates"] == 1
    assert not outcome.trained and not moved(one, before)
    assert outcome.metrics["groups_dropped"] == (2 if ship else 0)
    assert outcome.metrics["policy_batches_empty"] == (1 if ship else 0)
    outcome = score_then_train(one, [group(2, size=1), group(3, size=1)])
    assert outcome.trained and moved(one, before) and outcome.metrics["groups_dropped"] == 0


def test_values_that_credit_a_batch_and_its_explained_variance_come_from_before_the_critic_trained_on_it() -> None:
    one, reference = learner(Value()), learner(Value())
    for step in range(3):
        groups = batch_of(step)
        contexts = [[context_of(g.task)] * SIZE for g in groups]
        expected = scored_groups(reference.values, groups, contexts)
        outcome = score_then_train(one, groups)
        assert outcome.metrics["value_version"] == step and one.values.evaluator.version == step + 1
        fit, members = ValueFit(), iter(outcome.credit.members)
        for of in expected:
            for own, prediction in zip(of.trajectories, of.predictions, strict=True):
                member = next(members)
                assert member.values.tolist() == prediction.values.tolist() and member.value_version == step
                v, r = prediction.values[own.action_mask], own.episode_return
                fit = fit.merge(ValueFit(error=Moments.of(r - v), target=Moments.of(np.full(len(v), r))))
        assert outcome.metrics["explained_variance"] == pytest.approx(fit.value(), abs=1e-12)
        score_then_train(reference, groups)


def test_value_samples_carry_the_context_that_scored_them_and_frozen_targets() -> None:
    one = learner(Value(), context=OfTheTask())
    admitted: list[ValueSample] = []
    scored_with = {}
    learn, score = one.values.learn, one.values.score

    def watched_score(trajectories, contexts):
        scored_with.update({t.rollout_id: c for t, c in zip(trajectories, contexts, strict=True)})
        return score(trajectories, contexts)

    one.values.score = watched_score
    one.values.learn = lambda samples: admitted.extend(samples) or learn(samples)
    outcome = score_then_train(one, batch_of(3))
    assert len(admitted) == 2 * SIZE
    for sample, member in zip(admitted, outcome.credit.members, strict=True):
        assert sample.rollout_id == member.trajectory.rollout_id
        assert sample.contexts[0] is scored_with[sample.rollout_id]
        assert sample.contexts[0].token_ids.tolist()[0] == sample.rollout_id.group.row % 7
        assert sample.trajectories[0] is member.trajectory and sample.value_version == 0
        on = member.trajectory.action_mask
        assert set(sample.value_targets[0][on].tolist()) == {member.trajectory.episode_return}
        assert sample.old_values[0].tolist() == member.values.tolist()
        with pytest.raises(ValueError, match="read-only"):
            sample.value_targets[0][0] = 1.0


def test_trajectories_without_action_tokens_are_never_trained_on() -> None:
    one = learner(Value())
    groups = [group(0), group(1, silent=True)]
    outcome = score_then_train(one, groups)
    samples = value_samples(outcome.credit, outcome.contexts)
    assert {sample.rollout_id.group.row for sample in samples} == {0}
    assert outcome.trained and len(one.values.replay) == SIZE


@pytest.mark.parametrize("estimator", [LeaveOneOut(), Value()], ids=lambda e: e.type)
@pytest.mark.parametrize("groups", [[], [group(1, silent=True)]], ids=["no group", "no action"])
def test_fault_35_a_batch_with_nothing_to_train_on_is_counted_and_makes_no_version(estimator, groups) -> None:
    one = learner(estimator)
    before = weights(one)
    outcome = score_then_train(one, groups)
    assert not outcome.trained and not moved(one, before)
    assert outcome.metrics["policy_loss"] == 0.0
    assert (outcome.metrics["policy_batches_empty"], outcome.metrics["policy_steps"]) == (1, 0)
    assert outcome.metrics.get("value_updates", 0.0) == 0.0


def test_the_published_version_equals_the_number_of_steps_also_after_an_empty_batch() -> None:
    one = learner(GroupMean())
    assert one.policy.publish().version == 0
    for groups in (batch_of(0), [], batch_of(1), [group(5, size=1)], batch_of(2)):
        if score_then_train(one, groups).trained:
            assert one.policy.publish().version == one.policy.version
    assert one.policy.version == 3 and one.batches_empty == 2


def test_groups_are_scored_by_one_version_in_their_order() -> None:
    one = learner(Value())
    groups = batch_of(0)
    scored = scored_groups(one.values, groups, [[None] * SIZE, [context_of(groups[1].task)] * SIZE])
    assert [s.group_id for s in scored] == [g.group_id for g in groups]
    for of in scored:
        assert of.value_version == 0
        assert [p.rollout_id for p in of.predictions] == [t.rollout_id for t in of.trajectories]
    assert [s.predictions for s in scored_groups(None, groups, [[None] * SIZE] * 2)] == [None, None]


def test_every_metric_is_in_the_catalog_and_finite_where_defined() -> None:
    for estimator in (GroupMean(), Tether()):
        metrics = score_then_train(learner(estimator), batch_of(0)).metrics
        assert metrics.keys() <= CATALOG.keys()
        undefined = {name for name, value in metrics.items() if not math.isfinite(value)}
        assert not undefined


def test_several_optimizer_steps_make_one_version() -> None:
    one = learner(Value(), loss=Ppo(), minibatch_size=2, epochs=2, value_loss=ClippedMse())
    assert one.policy.publish().version == 0
    for step in (1, 2):
        outcome = score_then_train(one, batch_of(step))
        assert outcome.trained and outcome.metrics["policy_steps"] == 8 * step
        assert one.policy.publish().version == one.policy.version == step
        assert outcome.metrics["update_gap_nats"] > 0 and 0 <= outcome.metrics["value_clip_fraction"] <= 1
        # The sampler of these trajectories is version 0.
        assert outcome.metrics["staleness_max"] == step - 1
        assert outcome.metrics.keys() <= CATALOG.keys()


def test_values_that_clip_the_critic_are_those_that_credited_the_rollout_however_late_it_is_trained_on() -> None:
    one = learner(Value(), value_loss=ClippedMse(), batch=4)
    trained: list[ValueSample] = []
    update = one.values.trainer.update
    one.values.trainer.update = lambda batch: trained.extend(batch.samples) or update(batch)
    said = {}
    for step in range(3):
        outcome = score_then_train(one, batch_of(step))
        said |= {m.trajectory.rollout_id: m.values.tolist() for m in outcome.credit.members}
    assert len(trained) == 12
    assert all(sample.old_values[0].tolist() == said[sample.rollout_id] for sample in trained)
