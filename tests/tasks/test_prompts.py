"""Prompt lengths with their template, the bound that needs no encoding, and prompts that are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lecritique.core.errors import DataError
from lecritique.core.task import Message, Reference, Task
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_tokenizer
from lecritique.tasks.prompts import CutPrompts, PromptLengths, cut_prompt
from lecritique.tasks.registry import load_environment

CHAT = ChatRenderer(load_tokenizer("tiny"))
messages = st.lists(st.text(max_size=40), min_size=1, max_size=3).map(
    lambda texts: [Message(role="user", content=text) for text in texts]
)


def task(content: str) -> Task:
    opening = (Message(role="system", content="be brief"), Message(role="user", content=content))
    return Task(task_id="t", messages=opening, reference=Reference(answer="4"), metadata={"kept": 1})


@given(messages, st.text(max_size=40))
def test_the_bound_is_no_lower_than_the_length_with_further_text(opening, more) -> None:
    lengths = PromptLengths(CHAT)
    exact = lengths.tokens(opening)
    assert exact == len(CHAT.render_prompt(opening))
    assert lengths.at_most(opening, more) >= exact + len(CHAT.encode_text(more))


def test_the_bound_is_tight_for_plain_text() -> None:
    lengths = PromptLengths(CHAT)
    opening = [Message(role="user", content="1" * 50)]
    assert lengths.at_most(opening) - lengths.tokens(opening) <= 3


@pytest.mark.parametrize("content", ["a" * 100, "é" * 40, "ab " * 30])
def test_a_cut_prompt_fills_its_limit_and_keeps_the_beginning(content: str) -> None:
    whole = task(content)
    full = len(CHAT.render_prompt(whole.messages))
    for limit in (full - 1, full - 20, full):
        cut = cut_prompt(whole, CHAT, limit=limit)
        assert limit - 1 <= len(CHAT.render_prompt(cut.messages)) <= limit
        assert content.startswith(cut.messages[1].content) and cut.messages[0] == whole.messages[0]
        assert (cut.task_id, cut.reference, dict(cut.metadata)) == ("t", whole.reference, {"kept": 1})


def test_a_limit_that_leaves_nothing_of_the_question_is_an_error() -> None:
    with pytest.raises(DataError, match=r"task t: a prompt of 5 tokens would hold nothing"):
        cut_prompt(task("a" * 100), CHAT, limit=5)


def test_cut_rows_are_played_and_scored_like_the_whole_ones() -> None:
    environment = load_environment("sudoku", {"rows": 5})
    cut = cut_prompt(environment.task(2), CHAT, limit=10)
    wrapped = CutPrompts(environment, {2: cut})
    assert len(wrapped) == 5 and (wrapped.name, wrapped.reward_range) == ("sudoku", (0.0, 1.0))
    assert wrapped.task(2) is cut and wrapped.task(1).messages == environment.task(1).messages
    gold = wrapped.gold(wrapped.task(2), wrapped.task(2).messages)
    assert wrapped.start(wrapped.task(2)).reply(gold).reward == 1.0
