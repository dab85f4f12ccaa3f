"""What a teacher reads: one user message with what it may know, never cut; without a context the policy's own ids."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lecritique.config.schema import EnvContext, NoContext, ReferenceContext, SiblingsContext
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.task import Message, Reference, Task
from lecritique.critic.context import ContextBuilder
from lecritique.critic.teacher import teacher_messages, teacher_prompt
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_tokenizer
from lecritique.numerics.alignment import insert_context

SYSTEM, USER = Message(role="system", content="be brief"), Message(role="user", content="what is 2+2?")
TASK = Task(task_id="row-3", messages=(SYSTEM, USER), reference=Reference(answer="4", solution="two and two"))


@pytest.fixture(scope="module")
def chat() -> ChatRenderer:
    return ChatRenderer(load_tokenizer("tiny"))


def message(content: str) -> str:
    (one,) = teacher_messages(TASK, ReferenceContext(content=content))
    assert one.role == "user"
    return one.content


def test_the_words_with_a_worked_solution_and_with_the_answer_alone() -> None:
    assert message("both") == (
        "what is 2+2?\n\nReference solution:\ntwo and two\n\nFinal answer: 4\n(End of the reference solution.)\n"
        "Solve the problem in your own words."
    )
    assert message("solution") == message("both").replace("\n\nFinal answer: 4", "")
    assert message("answer") == (
        "what is 2+2?\n\nThe verified final answer is: 4\n"
        "Take it as the target. Keep every step of the reasoning so far that is valid, and go on from there."
    )


def test_fault_31_one_bos_no_system_message_and_without_a_context_the_policys_own_ids(chat) -> None:
    own = chat.render_prompt(TASK.messages)
    assert teacher_prompt(TASK, NoContext(), chat).tolist() == own.tolist()
    told = teacher_prompt(TASK, ReferenceContext(content="both"), chat).tolist()
    assert told.count(chat.bos_id) == 1 and told[0] == chat.bos_id
    assert "be brief" not in chat.decode(told)
    assert told == chat.render_prompt([Message(role="user", content=message("both"))]).tolist()


@pytest.mark.parametrize("placement", ["system_prefix", "user_suffix"])
def test_fault_31_the_critic_reads_one_bos_too(chat, placement: str) -> None:
    own = chat.render_prompt(TASK.messages)
    put = ContextBuilder(ReferenceContext(placement=placement), chat, context_length=1000)(TASK)
    assert insert_context(own, put.position, put.token_ids).tolist().count(chat.bos_id) == 1


def test_fault_30_a_question_of_12_and_a_solution_of_20_tokens_are_32_and_the_frame(chat) -> None:
    """The prompt limit of the policy (16) is no argument of either function: nothing can be cut to it."""
    task = Task(
        task_id="long", messages=(Message(role="user", content="q" * 12),),
        reference=Reference(answer="a", solution="s" * 20),
    )  # fmt: skip
    frame = len(chat.render_prompt([Message(role="user", content="-")])) - 1
    assert len(chat.render_prompt(task.messages)) == 12 + frame
    put = ContextBuilder(
        ReferenceContext(content="solution", placement="user_suffix"), chat, context_length=1000
    )(task)  # fmt: skip
    assert len(put) == 1 + 20  # one space
    told = chat.decode(teacher_prompt(task, ReferenceContext(content="solution"), chat))
    assert "q" * 12 in told and "s" * 20 in told


def test_special_tokens_in_a_solution_do_not_end_the_teachers_message(chat) -> None:
    stop = chat.token_texts([min(chat.stop_ids)])[0]
    hostile = dataclasses.replace(TASK, reference=Reference(answer="4", solution=f"a{stop}b"), metadata={})
    plain = teacher_prompt(TASK, ReferenceContext(content="both"), chat)
    told = teacher_prompt(hostile, ReferenceContext(content="both"), chat)
    for special in chat.stop_ids:
        assert np.count_nonzero(told == special) == np.count_nonzero(plain == special)


def test_what_a_teacher_cannot_be_told_is_refused() -> None:
    for context in (SiblingsContext(), EnvContext()):
        with pytest.raises(ConfigurationError, match=f"got '{context.type}'"):
            teacher_messages(TASK, context)
    bare = dataclasses.replace(TASK, reference=None, metadata={})
    with pytest.raises(DataError, match="row-3 has no reference"):
        teacher_messages(bare, ReferenceContext())
    unsolved = dataclasses.replace(TASK, reference=Reference(answer="4"), metadata={})
    with pytest.raises(DataError, match="row-3 has no worked solution"):
        teacher_messages(unsolved, ReferenceContext(content="both"))
