"""The structural audit passes every kind of context and flags each planted leak, every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lecritique.analysis.context_audit import (
    FEEDBACK,
    RESPONSE,
    REWARD,
    audit_contexts,
    audit_values,
    changes,
    same_context,
)
from lecritique.config.schema import EnvContext, NoContext, ReferenceContext, RubricContext, SiblingsContext
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.task import Message, Reference, Task
from lecritique.core.trajectory import ContextInsertion, Trajectory
from lecritique.credit.schedules import Group, group_contexts
from lecritique.critic.context import ContextBuilder
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_tokenizer

VOCABULARY = 40
REPETITIONS = 20
PLACEMENTS = ("system_prefix", "user_suffix")


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(load_tokenizer("tiny"))


def member(k: int, seed: int, *, feedback: bool = True, prompt: Sequence[int] = (1, 2, 3)) -> Trajectory:
    """A prompt, a turn, what the environment said to it, another turn."""
    rng = np.random.default_rng([seed, k])
    mask = np.array([0] * len(prompt) + [1] * 4 + [0] * (3 if feedback else 0) + [1] * 2, dtype=bool)
    turn = np.cumsum(np.r_[0, np.diff(mask.astype(int)) == 1]) if feedback else mask.astype(int)
    return Trajectory(
        rollout_id=RolloutId(GroupId(seed, 0), k),
        token_ids=np.r_[prompt, rng.integers(0, VOCABULARY, len(mask) - len(prompt))],
        action_mask=mask,
        sampler_logprobs=np.where(mask, -1.0, 0.0),
        turn_index=turn,
        policy_version=np.where(mask, 0, -1),
        episode_return=float(rng.integers(2)),
        truncated=False,
    )


def group(seed: int, members: int = 3, *, renderer: ChatRenderer | None = None) -> Group:
    task = Task(
        task_id=f"t/{seed}",
        messages=(Message(role="user", content=f"what is {seed}?"),),
        reference=Reference(answer=str(seed), solution="count"),
        rubric="be right",
        env=f"it is {seed}",
    )
    prompt = (1, 2, 3) if renderer is None else tuple(renderer.render_prompt(task.messages).tolist())
    trajectories = tuple(member(k, seed, prompt=prompt) for k in range(members))
    return Group(group_id=GroupId(seed, 0), task=task, trajectories=trajectories)


def told(position: int, ids) -> ContextInsertion:
    return ContextInsertion(position=position, token_ids=np.array(ids, dtype=np.int64))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", ["none", "reference", "both", "rubric", "env", "siblings", "trimmed"])
def test_every_kind_of_context_passes(renderer, kind, placement):
    context = {
        "none": NoContext(),
        "reference": ReferenceContext(placement=placement),
        "both": ReferenceContext(content="both", placement=placement),
        "rubric": RubricContext(placement=placement),
        "env": EnvContext(placement=placement),
        "siblings": SiblingsContext(placement=placement),
        "trimmed": SiblingsContext(placement=placement, on_overflow="trim_context", max_tokens=260),
    }[kind]
    builder = ContextBuilder(context, renderer, context_length=4096)
    groups = [group(s, renderer=renderer) for s in range(3)]
    found = audit_contexts(lambda g: group_contexts(builder, g), groups, vocabulary=VOCABULARY)
    assert not found.flagged
    assert found.checked == {RESPONSE: 9, REWARD: 9, FEEDBACK: 9}


LEAKS = {
    "outcome": (lambda t: [int(10 * t.episode_return)], REWARD),
    "future tokens": (lambda t: t.token_ids[t.action_mask][:2], RESPONSE),
    "length": (lambda t: [t.action_tokens], RESPONSE),
    "later feedback": (lambda t: t.token_ids[7:10], FEEDBACK),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_planted_leaks_are_flagged_every_time(leak):
    reveal, what = LEAKS[leak]
    for seed in range(REPETITIONS):
        found = audit_contexts(
            lambda g: [told(1, reveal(t)) for t in g.trajectories], [group(seed)], vocabulary=VOCABULARY, seed=seed
        )
        assert found.flagged and found.changed[what] == found.checked[what] == 3
        assert all(not n for name, n in found.changed.items() if name not in (what, RESPONSE))


def test_a_member_shown_among_its_own_siblings_is_flagged(renderer):
    builder = ContextBuilder(SiblingsContext(), renderer, context_length=4096)

    def all_of_the_group(g):
        wider = replace(
            g, trajectories=(*g.trajectories, replace(g.trajectories[0], rollout_id=RolloutId(g.group_id, 9)))
        )
        return (group_contexts(builder, wider) or [])[:-1]

    found = audit_contexts(all_of_the_group, [group(1, renderer=renderer)], vocabulary=VOCABULARY)
    # Only member 0 has a copy of itself among its siblings.
    assert (found.changed[REWARD], found.changed[RESPONSE]) == (1, 1)


def test_a_context_that_cannot_be_built_again_counts_as_changed():
    def refuses(g):
        return (
            None
            if any(t.episode_return == 1.0 - base.trajectories[0].episode_return for t in g.trajectories[:1])
            else [None] * 3
        )

    base = group(4)
    assert audit_contexts(refuses, [base], vocabulary=VOCABULARY).changed[REWARD] == 1
    assert audit_contexts(lambda g: None, [base], vocabulary=VOCABULARY).checked[REWARD] == 0


def test_what_is_changed_is_all_changed_and_nothing_else():
    before = member(0, 3)
    found = changes(before, vocabulary=VOCABULARY, rng=np.random.default_rng(0))
    other = found[RESPONSE]
    assert len(other) < len(before)
    mask = other.action_mask
    assert (other.token_ids[mask] != before.token_ids[: len(other)][mask]).all()
    assert (other.token_ids[~mask] == before.token_ids[: len(other)][~mask]).all()
    assert found[REWARD].episode_return == 1 - before.episode_return
    said = ~before.action_mask & (np.arange(len(before)) > 3)
    assert ((found[FEEDBACK].token_ids != before.token_ids) == said).all()
    assert set(changes(member(0, 3, feedback=False), vocabulary=9, rng=np.random.default_rng(0))) == {RESPONSE, REWARD}


def causal(g):
    return [np.cumsum(np.r_[0, t.token_ids[:-1]]).astype(float) for t in g.trajectories]


LEAKY_VALUES = {
    "outcome": lambda t, v: v + t.episode_return,
    "token t": lambda t, v: v + t.token_ids,
    "what follows": lambda t, v: v + t.token_ids[-1],
    "later feedback": lambda t, v: v + t.token_ids[9] * (np.arange(len(t)) < 9),
}


def test_values_of_the_history_pass():
    found = audit_values(causal, [group(s) for s in range(REPETITIONS)], vocabulary=VOCABULARY)
    assert found.checked == {"values": 60} and not found.flagged


@pytest.mark.parametrize("leak", LEAKY_VALUES)
def test_values_that_know_more_are_flagged(leak):
    def values(g):
        return [LEAKY_VALUES[leak](t, v) for t, v in zip(g.trajectories, causal(g), strict=True)]

    flagged = [
        audit_values(values, [group(s), group(100 + s)], vocabulary=VOCABULARY, seed=s).flagged
        for s in range(REPETITIONS)
    ]
    assert sum(flagged) >= 18


def test_same_context():
    assert same_context(None, None) and not same_context(None, told(1, [2]))
    assert same_context(told(1, [2, 3]), told(1, [2, 3]))
    assert not same_context(told(1, [2, 3]), told(2, [2, 3])) and not same_context(told(1, [2]), told(1, [3]))
