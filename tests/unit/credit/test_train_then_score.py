"""VASPO's order: v_old, one critic epoch over the policy's minibatches, values again, credit, policy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from learners import critic_of, group, learner
from small_models import small_policy

from lecritique.config.estimators import Evpo, LeaveOneOut, Tether, Value
from lecritique.config.losses import Bce, ClippedMse, Mse, Ppo
from lecritique.core.metrics import CATALOG, ValueFit
from lecritique.core.moments import Moments
from lecritique.core.trajectory import ValueBatch
from lecritique.credit.schedules import Group, Learner, by_rollout, scored_groups, with_contexts
from lecritique.credit.train_then_score import critic_minibatches, train_then_score
from lecritique.models.weights import MemoryWeightStore

SIZE, MINIBATCH = 4, 2


def batch_of(step: int) -> list[Group]:
    return [group(2 * step), group(2 * step + 1)]


class Diary:
    """What the parts of a learner do, in order."""

    def __init__(self, one: Learner) -> None:
        self.entries: list[tuple[str, object]] = []
        self.batches: list[tuple[ValueBatch, float]] = []
        self.said: list[list[np.ndarray]] = []
        self._wrap(one.values, "score", self._score)
        self._wrap(one.values.trainer, "update", self._update)
        self._wrap(one.policy, "_optimizer_step", self._policy)

    def _wrap(self, of, name: str, note) -> None:
        real = getattr(of, name)

        def wrapped(*given, **named):
            answer = real(*given, **named)
            note(answer, given, named)
            return answer

        setattr(of, name, wrapped)

    def _score(self, answer, given, named) -> None:
        self.entries.append(("score", answer[0].value_version if answer else None))
        self.said.append([prediction.values for prediction in answer])

    def _update(self, answer, given, named) -> None:
        self.entries.append(("critic", tuple(s.rollout_id for s in given[0].samples)))
        self.batches.append((given[0], named["share"]))

    def _policy(self, answer, given, named) -> None:
        self.entries.append(("policy", tuple(m.trajectory.rollout_id for m in given[0].batch.members)))


def fit_of(said, members, targets=None) -> float:
    fit = ValueFit()
    for index, (values, member) in enumerate(zip(said, members, strict=True)):
        mask = member.trajectory.action_mask
        g = np.full(mask.sum(), member.trajectory.episode_return) if targets is None else targets[index][mask]
        fit = fit.merge(ValueFit(error=Moments.of(g - values[mask]), target=Moments.of(g)))
    return fit.value()


def test_the_order_and_the_minibatches() -> None:
    one = learner(Value(), loss=Ppo(), minibatch_size=MINIBATCH)
    diary = Diary(one)
    for step in (0, 1):
        diary.entries.clear()
        outcome = train_then_score(one, batch_of(step))
        kinds = [kind for kind, _ in diary.entries]
        assert kinds == ["score"] + ["critic"] * 4 + ["score"] + ["policy"] * 4
        assert [what for kind, what in diary.entries if kind == "score"] == [4 * step, 4 * step + 4]
        critic, policy = ([what for kind, what in diary.entries if kind == role] for role in ("critic", "policy"))
        assert critic == policy and len({i for part in critic for i in part}) == 2 * SIZE
        assert outcome.trained and outcome.metrics["value_version"] == outcome.metrics["value_updates"] == 4 * step + 4
        assert outcome.metrics.keys() <= CATALOG.keys()
        assert {s.value_version for batch, _ in diary.batches[-4:] for s in batch.samples} == {4 * step}
    # A version is as many updates; those in the middle of an epoch are not published.
    assert len(one.values.replay) == 0 and one.values.evaluator.version == 8


def test_what_the_critic_is_trained_on_and_what_credits() -> None:
    one = learner(Value(), loss=Ppo(), minibatch_size=MINIBATCH)
    diary = Diary(one)
    outcome = train_then_score(one, batch_of(1))
    old, new = diary.said
    samples = [sample for batch, _ in diary.batches for sample in batch.samples]
    assert [share for _, share in diary.batches] == [1.0] * 4
    for index, (sample, member) in enumerate(zip(samples, outcome.credit.members, strict=True)):
        mask, g = member.trajectory.action_mask, member.trajectory.episode_return
        assert sample.old_values[0].tolist() == old[index].tolist() and sample.value_version == 0
        assert set(sample.value_targets[0][mask].tolist()) == {g}
        assert sample.contexts[0].token_ids[0] == sample.rollout_id.group.row % 7
        assert member.values.tolist() == new[index].tolist() and member.value_version == 4
        np.testing.assert_allclose(member.advantages[mask], g - new[index][mask], atol=1e-12)
        assert not np.allclose(old[index][mask], new[index][mask], atol=1e-4)
    members = outcome.credit.members
    assert outcome.metrics["explained_variance"] == pytest.approx(fit_of(old, members), abs=1e-12)
    assert outcome.metrics["explained_variance_post_update"] == pytest.approx(fit_of(new, members), abs=1e-12)
    assert outcome.metrics["explained_variance"] != outcome.metrics["explained_variance_post_update"]


def test_without_the_pre_update_it_is_ppos_usual_order() -> None:
    one, plain = (learner(Value(), loss=Ppo(), minibatch_size=MINIBATCH) for _ in range(2))
    diary, groups = Diary(one), batch_of(0)
    outcome = train_then_score(one, groups, pre_update=False)
    assert [kind for kind, _ in diary.entries] == ["score"] + ["policy"] * 4 + ["critic"] * 4
    (old,) = diary.said
    for values, member in zip(old, outcome.credit.members, strict=True):
        mask = member.trajectory.action_mask
        np.testing.assert_allclose(member.advantages[mask], member.trajectory.episode_return - values[mask], atol=1e-12)
    assert outcome.metrics["explained_variance"] == pytest.approx(fit_of(old, outcome.credit.members), abs=1e-12)
    assert "explained_variance_post_update" not in outcome.metrics
    assert (outcome.metrics["value_version"], outcome.metrics["value_updates"]) == (0, 4)
    # The critic's epoch is the same one, whenever it comes.
    train_then_score(plain, groups)
    for a, b in zip(one.values.trainer.model.parameters(), plain.values.trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("loss", [ClippedMse(eps_v=1e-3), Mse(), Bce()], ids=lambda loss: loss.type)
def test_the_epoch_is_updates_towards_the_return_with_v_old_fixed(loss) -> None:
    """A critic of its own, updated minibatch by minibatch, ends with the same weights."""
    one = learner(Value(), value_loss=loss, loss=Ppo(), minibatch_size=MINIBATCH)
    diary = Diary(one)
    outcome = train_then_score(one, batch_of(2))
    own = critic_of(small_policy(), loss, MemoryWeightStore())
    losses = [own.trainer.update(batch)["value_loss"] for batch, _ in diary.batches]
    assert outcome.metrics["value_loss"] == pytest.approx(sum(losses) / 4, rel=1e-12)
    for a, b in zip(one.values.trainer.model.parameters(), own.trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)
    # Clipping is around v_old, not around what the critic said one minibatch ago: it has moved by then.
    assert ("value_clip_fraction" in outcome.metrics) == isinstance(loss, ClippedMse)


def test_targets_of_a_lambda_stay_those_of_v_old() -> None:
    one = learner(Value(gae_lambda=0.5), target_lambda=0.7, loss=Ppo())
    diary = Diary(one)
    outcome = train_then_score(one, batch_of(0))
    ((batch, _),) = diary.batches
    trained_on = [sample.value_targets[0] for sample in batch.samples]
    assert [m.value_targets.tolist() for m in outcome.credit.members] == [t.tolist() for t in trained_on]
    old, new = diary.said
    for said, name in ((old, "explained_variance"), (new, "explained_variance_post_update")):
        assert outcome.metrics[name] == pytest.approx(fit_of(said, outcome.credit.members, trained_on), abs=1e-12)
    # Advantages are GAE of the new values with the estimator's own lambda: their recursion, from the end.
    for values, member in zip(new, outcome.credit.members, strict=True):
        mask, carried = member.trajectory.action_mask, 0.0
        v, a = values[mask], member.advantages[mask]
        for t in reversed(range(len(v))):
            after = v[t + 1] if t + 1 < len(v) else 0.0
            reward = member.trajectory.episode_return if t + 1 == len(v) else 0.0
            carried = reward + after - v[t] + 0.5 * carried
            assert a[t] == pytest.approx(carried, abs=1e-12)


def test_a_short_minibatch_counts_its_share_for_critic_and_policy_alike() -> None:
    """Seven rollouts are left of eight: 2, 2, 2 and 1."""
    one = learner(Value(), loss=Ppo(), minibatch_size=MINIBATCH)
    groups = batch_of(0)
    groups[1] = dataclasses.replace(groups[1], trajectories=groups[1].trajectories[:-1])
    diary = Diary(one)
    train_then_score(one, groups)
    assert [(len(batch.samples), share) for batch, share in diary.batches] == [(2, 1.0)] * 3 + [(1, 0.5)]
    policy = [len(what) for kind, what in diary.entries if kind == "policy"]
    assert policy == [2, 2, 2, 1]


def test_rollouts_without_action_tokens_are_in_no_minibatch() -> None:
    one = learner(Value(), loss=Ppo(), minibatch_size=MINIBATCH)
    groups = batch_of(0)
    first, *rest = groups[0].trajectories
    silent = dataclasses.replace(first, action_mask=np.zeros(len(first), dtype=bool))
    groups[0] = dataclasses.replace(groups[0], trajectories=(silent, *rest))
    diary = Diary(one)
    train_then_score(one, groups)
    critic, policy = ([what for kind, what in diary.entries if kind == role] for role in ("critic", "policy"))
    assert critic == policy and [len(part) for part in critic] == [2, 2, 2, 1]
    assert silent.rollout_id not in {i for part in critic for i in part}


def test_a_share_scales_the_loss_and_its_gradient() -> None:
    samples = Diary(one := learner(Value(), loss=Ppo()))
    train_then_score(one, batch_of(0))
    batch = samples.batches[0][0]
    found, gradients = [], []
    for share in (1.0, 0.25):
        own = critic_of(small_policy(), ClippedMse(), MemoryWeightStore())
        found.append(own.trainer.update(batch, share=share)["value_loss"])
        gradients.append(own.trainer.model.head.weight.grad.clone())
    assert found[1] == pytest.approx(found[0] / 4, rel=1e-12) and found[0] > 0


def test_segments_of_a_rollout_stay_together() -> None:
    diary = Diary(one := learner(Value(), loss=Ppo()))
    train_then_score(one, batch_of(0))
    a, b, c, *_ = diary.batches[0][0].samples
    parts = critic_minibatches([a, b, a, c], 2)
    assert [([s.rollout_id for s in part], share) for part, share in parts] == [
        ([a.rollout_id, a.rollout_id, b.rollout_id], 1.0),
        ([c.rollout_id], 0.5),
    ]
    assert [len(part) for part, _ in critic_minibatches([a, b, c], None)] == [3]
    assert critic_minibatches([], None) == []


def test_evpo_decides_by_the_values_from_before_the_update() -> None:
    """A critic that was useless on the batch is still useless for it when it has seen the answers."""
    one = learner(Evpo(), value_loss=Mse(), loss=Ppo(), minibatch_size=1)
    decided = []
    for _ in range(6):
        outcome = train_then_score(one, batch_of(0))
        before, after = (outcome.metrics[f"explained_variance{suffix}"] for suffix in ("", "_post_update"))
        assert outcome.metrics["evpo_uses_critic"] == float(before > 0)
        decided.append((before > 0, after > 0))
    assert (False, True) in decided and (True, True) in decided


@pytest.mark.parametrize("estimator", [Value(), Tether(), Evpo()], ids=lambda e: e.type)
def test_controllers_see_a_batch_once(estimator) -> None:
    one = learner(estimator, loss=Ppo())
    windows = one.crediting.state()
    seen = []
    for name in ("tether", "evpo"):
        controller = getattr(one.crediting, name)
        if controller is not None:
            method = "observe" if name == "tether" else "decide"
            real = getattr(controller, method)
            setattr(controller, method, lambda *given, real=real: seen.append(1) or real(*given))
    train_then_score(one, batch_of(0))
    assert len(seen) == {"value": 0, "tether": 2 * SIZE, "evpo": 1}[estimator.type]
    assert (one.crediting.state() == windows) == (estimator.type == "value")


def test_warm_up_is_the_gate_that_it_is_elsewhere() -> None:
    one = learner(Value(), loss=Ppo(), warmup_updates=2)
    assert not train_then_score(one, batch_of(0)).trained
    outcome = train_then_score(one, batch_of(1))
    assert outcome.trained and outcome.metrics["policy_batches_withheld"] == 1
    shipped = learner(Value(), loss=Ppo(), warmup_updates=2, ship=True)
    assert {m.estimator for m in train_then_score(shipped, batch_of(0)).credit.members} == {"leave_one_out"}


def test_groups_that_are_too_small_train_neither() -> None:
    one = learner(Tether(), loss=Ppo())
    diary = Diary(one)
    outcome = train_then_score(one, [group(0), group(1, size=1)])
    assert outcome.metrics["groups_dropped"] == 1
    assert [len(batch.samples) for batch, _ in diary.batches] == [SIZE] and len(outcome.credit.members) == SIZE


def test_fault_35_a_batch_with_nothing_to_train_on_makes_no_version() -> None:
    one = learner(Value(), loss=Ppo())
    for pre_update in (True, False):
        outcome = train_then_score(one, [], pre_update=pre_update)
        assert (
            not outcome.trained and outcome.metrics["value_updates"] == 0 and math.isnan(outcome.metrics["value_loss"])
        )
    assert one.batches_empty == 2 and one.values.evaluator.version == 0


def test_it_needs_a_critic() -> None:
    one = learner(LeaveOneOut())
    one.values = None
    with pytest.raises(ValueError, match="needs a critic"):
        train_then_score(one, batch_of(0))


def test_scoring_alone_moves_nothing() -> None:
    one = learner(Tether(), loss=Ppo())
    groups, contexts, _ = with_contexts(one.context, batch_of(0))
    assert by_rollout(groups, contexts)
    state = one.crediting.state()
    scored = scored_groups(one.values, groups, contexts)
    credits = one.crediting.targets(scored)
    assert one.crediting.state() == state and len(credits) == 2 * SIZE
