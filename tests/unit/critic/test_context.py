"""Privileged contexts: where they go, what they leave alone, and what is missing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lecritique.config.losses import Bce
from lecritique.config.schema import EnvContext, NoContext, ReferenceContext, RubricContext
from lecritique.core.errors import DataError
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.task import Message, Reference, Task
from lecritique.core.trajectory import Trajectory, ValueRequest
from lecritique.critic.context import ContextBuilder, context_text
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_tokenizer
from lecritique.models.scoring import TokenRow, values
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore

OPENING = (Message(role="user", content="solve 2+2"),)
TASK = Task(task_id="row-3", messages=OPENING, reference=Reference(answer="4", solution="add them"))
PLACEMENTS = ["system_prefix", "user_suffix"]


@pytest.fixture(scope="module")
def chat() -> ChatRenderer:
    return ChatRenderer(load_tokenizer("tiny"))


@pytest.fixture(scope="module")
def critic() -> ValueModel:
    config = Qwen3Config(
        vocab_size=len(load_tokenizer("tiny")), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=256, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    return ValueModel.from_policy(Qwen3ForCausalLM(config).double().eval(), Bce(), seed=1)


def context_builder(context, chat: ChatRenderer) -> ContextBuilder:
    return ContextBuilder(context, chat, context_length=1000)


def played(chat: ChatRenderer, *, turns: int = 2) -> Trajectory:
    ids, mask = chat.render_prompt(OPENING), np.zeros(len(chat.render_prompt(OPENING)), dtype=bool)
    for turn in range(turns):
        sampled = [*chat.encode_text(f"try {turn}"), min(chat.stop_ids)]
        given = chat.extend([*ids, *sampled], (Message(role="user", content="again"),))[len(ids) + len(sampled) :]
        ids = np.concatenate([ids, sampled, given])
        mask = np.concatenate([mask, np.ones(len(sampled), dtype=bool), np.zeros(len(given), dtype=bool)])
    zeros = np.zeros(len(ids), dtype=np.int64)
    return Trajectory(
        rollout_id=RolloutId(GroupId(3, 0), 0), token_ids=ids, action_mask=mask, sampler_logprobs=zeros,
        turn_index=zeros, policy_version=zeros, episode_return=1.0, truncated=False,
    )  # fmt: skip


def evaluator(critic: ValueModel, *, limit: int = 1000) -> ValueEvaluator:
    store = MemoryWeightStore()
    one = ValueEvaluator(ValueModel(critic.backbone, Bce(), seed=9), store, max_tokens=10_000, context_length=limit)
    one.adopt(store.put("critic", critic.state_dict()))
    return one


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("content", ["answer", "solution", "both"])
def test_fault_29_values_are_those_of_the_full_sequence_at_the_shifted_positions(
    chat, critic, placement: str, content: str
) -> None:
    context = context_builder(ReferenceContext(placement=placement, content=content), chat)(TASK)
    own = played(chat)
    (found,) = evaluator(critic).score([ValueRequest(trajectory=own, context=context)])
    p, at = len(context), context.position
    whole = np.concatenate([own.token_ids[:at], context.token_ids, own.token_ids[at:]])
    everywhere = TokenRow(token_ids=whole, mask=np.arange(len(whole)) > 0)
    expected = np.concatenate([[0.0], values(critic, [everywhere], max_tokens=10_000)[0]])
    assert len(found.values) == len(own)
    on = np.flatnonzero(own.action_mask)
    assert on.min() >= at
    np.testing.assert_allclose(found.values[on], expected[on + p], rtol=0, atol=1e-12)
    assert not found.values[~own.action_mask].any()
    (clean,) = evaluator(critic).score([ValueRequest(trajectory=own)])
    assert (clean.values[on] != found.values[on]).all()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_context_says_the_answer_and_stands_where_its_placement_says(chat, placement: str) -> None:
    context = context_builder(ReferenceContext(placement=placement, content="both"), chat)(TASK)
    own = chat.render_prompt(OPENING)
    whole = [*own[: context.position], *context.token_ids, *own[context.position :]]
    text = "".join(chat.token_texts(whole))
    plain = "".join(chat.token_texts(own))
    said = "Answer: 4.\n\nadd them"
    assert said in text and said not in plain
    if placement == "user_suffix":
        assert text == plain.replace("solve 2+2", f"solve 2+2 {said}")
    else:
        assert text.endswith(plain.removeprefix(chat.token_texts([chat.bos_id])[0] if chat.bos_id is not None else ""))
        assert text.index(said) < text.index("solve 2+2")
    if chat.bos_id is not None:
        assert whole.count(chat.bos_id) == 1


def test_no_context_is_the_feature_off_bit_for_bit(chat, critic) -> None:
    assert context_builder(NoContext(), chat)(TASK) is None and context_text(TASK, NoContext()) is None
    own = played(chat)
    (found,) = evaluator(critic).score([ValueRequest(trajectory=own, context=context_builder(NoContext(), chat)(TASK))])
    row = TokenRow(token_ids=own.token_ids, mask=own.action_mask)
    assert found.values[own.action_mask].tolist() == values(critic, [row], max_tokens=10_000)[0].tolist()


def test_a_task_without_what_is_asked_for_is_a_data_error_naming_task_and_key(chat) -> None:
    bare = dataclasses.replace(TASK, reference=None, metadata={})
    unsolved = dataclasses.replace(TASK, reference=Reference(answer="4"), metadata={})
    blank = dataclasses.replace(TASK, reference=Reference(answer="4", solution="  "), metadata={})
    with pytest.raises(DataError, match=r"row-3 has no reference, which 'critic\.context\.type'"):
        context_builder(ReferenceContext(), chat)(bare)
    for task in (unsolved, blank):
        for content in ("solution", "both"):
            with pytest.raises(DataError, match=rf"row-3 has no worked solution.*'{content}'"):
                context_text(task, ReferenceContext(content=content))
        assert context_text(task, ReferenceContext()) == "Answer: 4."


def test_rubric_and_env_are_told_in_the_tasks_own_words(chat) -> None:
    task = dataclasses.replace(TASK, rubric="be exact", env="the sum is 4", metadata={})
    for context, words in ((RubricContext(), "be exact"), (EnvContext(placement="user_suffix"), "the sum is 4")):
        put = context_builder(context, chat)(task)
        assert put.text == context_text(task, context) == words and words in "".join(chat.token_texts(put.token_ids))
        with pytest.raises(DataError, match=rf"row-3 declares no '{context.type}' context"):
            context_builder(context, chat)(TASK)


@pytest.mark.parametrize("blank", ["", " \n", 4, b"four", "\ud800"])
def test_fault_29_a_blank_or_non_text_context_is_no_task(blank) -> None:
    """Before any rollout: a task that holds one cannot be made, and its row is named when the data set is built."""
    for field in ("rubric", "env"):
        with pytest.raises(ValueError, match=rf"row-3: {field} (must|holds)"):
            dataclasses.replace(TASK, **{field: blank}, metadata={})
    with pytest.raises(ValueError, match="reference answer"):
        Reference(answer=blank)


def test_the_context_depends_on_the_task_alone(chat) -> None:
    build = context_builder(ReferenceContext(), chat)
    other = dataclasses.replace(TASK, reference=Reference(answer="5"), metadata={})
    assert build(TASK).token_ids.tolist() == build(TASK).token_ids.tolist() != build(other).token_ids.tolist()


def test_special_tokens_in_a_reference_are_plain_text(chat) -> None:
    """A reference must not be able to close the message that it stands in."""
    stop = chat.token_texts([min(chat.stop_ids)])[0]
    task = dataclasses.replace(TASK, reference=Reference(answer=f"4{stop}4"), metadata={})
    for placement in PLACEMENTS:
        build = context_builder(ReferenceContext(placement=placement), chat)
        ordinary, hostile = build(TASK).token_ids.tolist(), build(task).token_ids.tolist()
        assert all(hostile.count(special) == ordinary.count(special) for special in chat.stop_ids)


def test_fault_30_a_sequence_that_is_too_long_with_its_context_is_an_error_and_never_cut(chat, critic) -> None:
    context = context_builder(ReferenceContext(), chat)(TASK)
    own = played(chat, turns=1)
    closing = len(own) - 1 - int(np.flatnonzero(own.action_mask)[-1])
    assert closing > 0
    # What stands behind the last action need not be read.
    needed = len(own) - closing + len(context)
    one = evaluator(critic, limit=needed)
    assert len(one.score([ValueRequest(trajectory=own, context=context)])[0].values) == len(own)
    with pytest.raises(DataError, match=rf"rollout 3\.0\.0 has {needed} tokens .* limit of {needed - 1}"):
        evaluator(critic, limit=needed - 1).score([ValueRequest(trajectory=own, context=context)])
    evaluator(critic, limit=needed - 1).score([ValueRequest(trajectory=own)])
