"""VASPO and its relatives as whole runs: a step written out, identities between arms, dynamic sampling."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch

import lecritique.runtime.synchronous as synchronous
from lecritique.core.errors import EngineFailure
from lecritique.runtime.build import Parts
from lecritique.runtime.synchronous import says_nothing, train_step
from tests.integration.asynchronous_runs import asynchronous_parts, drive, weights_of
from tests.integration.short_runs import small_parts, trained, without_clocks
from tests.oracles.literal_modulation import clipped_mse_loop, ppo_loop, vaspo_loop

HOT = "sampling.temperature=1.6"  # so that rewards differ inside groups, however good the model is
EXACT = ("runtime.dtype=float64", HOT)
TEACHER = "policy.modulation.type=fusion"


def logits_of(model, ids) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False).logits[0].numpy()


def log_prob(logits_V: np.ndarray, token: int, temperature: float) -> float:
    scaled = logits_V / temperature
    return float(scaled[token] - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum()))


def values_of(critic, ids) -> np.ndarray:
    """What the critic emits at each position: backbone, then its linear head."""
    with torch.no_grad():
        states = critic.backbone(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False).last_hidden_state[0]
        return critic.head(states)[:, 0].numpy()


def test_a_step_of_vaspo_written_out() -> None:
    """Method sheet, section 6, from models' outputs alone: one minibatch, so each loss is of the models before it."""
    parts = small_parts(*EXACT, "task.form=multi_turn", "task.min_empty=3", "task.max_empty=4", arm="vaspo")
    policy = copy.deepcopy(parts.learner.policy.model)
    critics = [copy.deepcopy(parts.learner.values.trainer.model)]
    t = parts.config.sampling.temperature
    done = train_step(parts, 0)
    parts.engine.close()
    critics.append(parts.learner.values.trainer.model)
    members = done.outcome.credit.members
    assert len(members) == 8 and any(m.trajectory.turn_index.max() > 0 for m in members)
    value_losses, responses = [], []
    for member in members:
        own, task = member.trajectory, parts.environment.task(member.trajectory.group_id.row)
        actions, g = np.flatnonzero(own.action_mask), own.episode_return
        # (1) v_old and (3) v_new, of the critic with its context inside the user message.
        context = done.outcome.contexts[own.rollout_id]
        assert context.position > 1 and f"Answer: {task.reference.answer}." in context.text
        told = [*own.token_ids[: context.position], *context.token_ids, *own.token_ids[context.position :]]
        before, after = (values_of(critic, told) for critic in critics)
        at = actions - 1 + len(context)
        np.testing.assert_allclose(member.values[actions], after[at], rtol=1e-9, atol=1e-12)
        # (2) one update of the clipped loss, v_old being the critic itself.
        value_losses += [clipped_mse_loop(float(before[i]), float(before[i]), g, 0.5)[0] for i in at]
        # (4) the teacher reads a prompt of its own and the very tokens behind it.
        prompt = parts.learner.teacher_prompts(task)
        of_policy, of_teacher = (
            logits_of(policy, own.token_ids),
            logits_of(policy, [*prompt, *own.token_ids[actions[0] :]]),
        )
        losses = []
        for index, position in zip(actions, at, strict=True):
            token = int(own.token_ids[index])
            lp = log_prob(of_policy[index - 1], token, t)
            q = log_prob(of_teacher[index - 1 - actions[0] + len(prompt)], token, t)
            advantage = vaspo_loop(g - float(after[position]), q - lp, 0.2, 0.02, 0.02, True)
            # (5) on the batch's first optimizer step the ratio is 1.
            losses.append(ppo_loop(lp, lp, float(own.sampler_logprobs[index]), advantage, 0.2, 0.2, 2.0))
        responses.append(sum(losses) / len(losses))
    assert done.metrics["value_loss"] == pytest.approx(sum(value_losses) / len(value_losses), rel=1e-9)
    assert done.metrics["policy_loss"] == pytest.approx(sum(responses) / len(responses), rel=1e-8)
    assert 0 < done.metrics["gate_open_fraction"] < 1 and done.metrics["fusion_strength"] > 0
    # The teacher has moved once; no second critic update.
    for mean, first, last in zip(
        parts.learner.policy.teacher.model.parameters(),
        policy.parameters(),
        parts.learner.policy.model.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(mean, 0.95 * first + 0.05 * last, rtol=1e-12, atol=1e-15)
    assert done.metrics["value_updates"] == 1


def same_training(one: tuple, other: tuple, *, steps: int = 2, bits: bool = True) -> list[dict]:
    """Two small runs have the same weights and metrics, those that only one writes aside, and what it cost."""
    runs = [small_parts(HOT, *overrides, arm=arm) for arm, *overrides in (one, other)]
    rows = [without_clocks(trained(parts, steps)) for parts in runs]
    (a, b) = (weights_of(parts) for parts in runs)
    assert all(torch.equal(a[name], b[name]) if bits else torch.allclose(a[name], b[name]) for name in a)
    for left, right in zip(*rows, strict=True):
        for name in left.keys() & right.keys() - {"dropped_fraction"}:
            if name.startswith("flops"):  # a teacher that changes nothing is paid for all the same
                continue
            assert left[name] == (right[name] if bits else pytest.approx(right[name], rel=1e-6, abs=1e-7)), name
    assert any(row["policy_grad_norm"] > 1e-3 for row in rows[0])
    return rows[0]


MINIBATCHES = ("policy.minibatch_size=4", "policy.epochs=2")


def test_eps_w_of_zero_is_critic_only_to_the_last_bit() -> None:
    rows = same_training(("vaspo", "policy.modulation.eps_w=0.0", *MINIBATCHES), ("critic_only", *MINIBATCHES))
    assert rows[-1]["modulation_weight_mean"] == 1.0 and rows[-1]["fusion_strength"] == 0.0
    assert rows[-1]["teacher_gap_abs_nats"] > 0.0


def test_a_frozen_teacher_without_context_agrees_before_the_first_step_and_not_after() -> None:
    own = ("vaspo", "policy.teacher.type=frozen", "policy.teacher.content=none", "policy.modulation.masked=false")
    rows = without_clocks(trained(small_parts(HOT, *own[1:], arm=own[0])))
    assert rows[0]["teacher_gap_abs_nats"] == rows[0]["fusion_strength"] == 0.0 < rows[1]["teacher_gap_abs_nats"]
    same_training(own, ("critic_only",), steps=1)


def test_dapos_surrogate_at_equal_clips_is_ppos_at_the_same_reduction_and_advantages() -> None:
    ppo = "policy.loss={type='ppo',eps_low=0.2,eps_high=0.2,reduction='token_mean',rollout_weight=false}"
    dapo = "policy.loss={type='dapo',eps_low=0.2,eps_high=0.2}"
    same_training(("leave_one_out", ppo, *MINIBATCHES), ("leave_one_out", dapo, *MINIBATCHES))


def test_rlsd_with_mix_zero_is_std_scaled_grpo_with_ppos_surrogate() -> None:
    grpo = ("mean", "estimator.scale=std", "policy.loss.type=ppo", *MINIBATCHES)
    same_training(("rlsd", "policy.modulation.mix=0.0", *MINIBATCHES), grpo)
    # And it is not with a mix above 0.
    with pytest.raises(AssertionError):
        same_training(("rlsd", *MINIBATCHES), grpo)


def test_rlsds_mix_falls_with_the_batches_that_were_trained_on() -> None:
    rows = trained(small_parts(HOT, "policy.modulation.mix_steps=2", arm="rlsd"), 3)
    strengths = [row["fusion_strength"] for row in rows]
    assert strengths[0] > 0 and strengths[2] == 0.0 and strengths[1] < strengths[0]


def test_vaspo_and_ppo_see_the_same_critic_epoch_until_their_contexts_differ() -> None:
    clean = ("critic_only", "critic.context={type='none'}", *MINIBATCHES)
    same_training(clean, ("ppo", *MINIBATCHES))


@pytest.mark.parametrize("schedule", ["score_then_train", "train_then_score"])
def test_a_tether_baseline_over_a_privileged_critic_with_a_teacher_is_a_composition(schedule: str) -> None:
    chosen = (TEACHER, "critic.context.type=reference", f"critic.schedule.type={schedule}")
    rows = trained(small_parts(HOT, *chosen, arm="tether"), 3)
    assert all(row["fusion_strength"] > 0 for row in rows)
    assert ("explained_variance_post_update" in rows[0]) == (schedule == "train_then_score")
    assert any(row["rho"] > 0 for row in rows)


@pytest.mark.parametrize("arm", ["tether", "rlsd", "opsd"])
def test_in_the_asynchronous_loop_without_staleness_it_is_the_synchronous_run(arm: str) -> None:
    chosen = (TEACHER, "critic.context.type=reference") if arm == "tether" else ()
    common = (HOT, "run.steps=3", "runtime.dtype=float64", *chosen)
    inline = small_parts(*common, arm=arm)
    rows = without_clocks(trained(inline, 3))
    parts = asynchronous_parts(*common, "rollout.max_staleness=0", arm=arm)
    driven = drive(parts)
    a, b = weights_of(inline), weights_of(parts)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    name = "opsd_divergence" if arm == "opsd" else "fusion_strength"
    assert [step.metrics[name] for step in driven.steps] == [row[name] for row in rows]
    teachers = [p.learner.policy.teacher.model.state_dict() for p in (inline, parts)]
    assert all(torch.equal(teachers[0][key], teachers[1][key]) for key in teachers[0])


# Dynamic sampling.


def ledger_of(parts: Parts) -> list[dict]:
    records: list[dict] = []
    parts.ledger.write_with(lambda record: records.append(dict(record)))
    return records


def dapo_parts(*overrides: str) -> Parts:
    return small_parts(HOT, "rollout.group_size=2", *overrides, arm="dapo")


def test_groups_that_say_nothing_are_replaced_by_the_next_of_the_stream() -> None:
    parts = dapo_parts("run.steps=3")
    records, position = ledger_of(parts), 0
    resampled = 0.0
    for step in range(3):
        done = train_step(parts, step)
        of_step = [record for record in records if record["step"] == step]
        # Every position is asked for once, in order, and has one outcome.
        assert [record["position"] for record in of_step] == list(range(position, position + len(of_step)))
        position += len(of_step)
        filtered = [record for record in of_step if record["outcome"] == "filtered"]
        assert len(filtered) == done.metrics["groups_resampled"] and len(of_step) == 4 + len(filtered)
        assert len(done.rollouts) == 4 and not any(says_nothing(members) for members in done.rollouts)
        assert done.metrics["groups_without_variance"] == 0.0 and done.metrics["advantage_std"] > 0
        assert done.metrics["rollouts"] == 2 * len(of_step)
        resampled += len(filtered)
    assert resampled > 0 and parts.ledger.next_position == position
    parts.engine.close()


def test_the_bound_counts_rounds_and_what_is_left_stays(monkeypatch) -> None:
    asked = []
    real = synchronous._next_groups
    monkeypatch.setattr(synchronous, "_next_groups", lambda parts, count: asked.append(count) or real(parts, count))
    monkeypatch.setattr(synchronous, "says_nothing", lambda members: members[0].rollout_id.group.row % 2 == 0)
    parts = dapo_parts("rollout.dynamic_sampling=2")
    done = train_step(parts, 0)
    parts.engine.close()
    assert asked[0] == 4 and 1 <= len(asked) <= 3
    assert len(done.rollouts) == 4 and done.metrics["groups_resampled"] == sum(asked) - 4
    monkeypatch.setattr(synchronous, "says_nothing", lambda members: True)
    asked.clear()
    parts = dapo_parts("rollout.dynamic_sampling=2")
    done = train_step(parts, 0)
    parts.engine.close()
    assert asked == [4, 4, 4] and len(done.rollouts) == 4
    assert (done.metrics["groups_resampled"], done.metrics["groups_without_variance"]) == (8.0, 4.0)


def test_without_dynamic_sampling_nothing_is_counted_or_replaced() -> None:
    parts = dapo_parts("rollout.dynamic_sampling=0")
    records = ledger_of(parts)
    rows = [train_step(parts, step).metrics for step in range(2)]
    parts.engine.close()
    assert [record["position"] for record in records] == list(range(8))
    assert "groups_resampled" not in rows[0] and "groups_without_variance" not in rows[0]


def test_a_group_that_failed_as_a_whole_is_a_failure_and_not_resampled(monkeypatch) -> None:
    parts = dapo_parts("rollout.max_failed_fraction=0.5")
    records, real = ledger_of(parts), synchronous.collect
    counter = itertools.count()

    def collect(requests, **named):
        groups = real(requests, **named)
        if next(counter):
            return groups
        failed = (dataclasses.replace(member, reward=None, error=EngineFailure("gone")) for member in groups[0])
        return [tuple(failed), *groups[1:]]

    monkeypatch.setattr(synchronous, "collect", collect)
    done = train_step(parts, 0)
    parts.engine.close()
    assert [r["outcome"] for r in records if r["position"] == 0] == ["failed"] and len(done.rollouts) == 4
