"""What counts as an answer to Knights and Knaves: strict with hostile text, lenient with order, case and layout."""

import time

import pytest

from lecritique.core.task import Reply
from lecritique.tasks.junk import JUNK
from lecritique.tasks.knights_knaves.reading import terse_reading, verbose_reading
from lecritique.tasks.knights_knaves.wording import Cast
from lecritique.tasks.registry import load_environment
from lecritique.tasks.validate import validate_environment

CAST = Cast(names=("Ada", "Ben", "Cleo"))
SOLUTION = (True, False, True)
STYLES = [
    {"style": "terse", "min_roles": 2, "rows": 12},
    {"rows": 12},
    {"rows": 12, "answer_tags": False, "wording": "plain"},
    {"rows": 12, "role_words": "angel", "names": "letters"},
]


@pytest.mark.parametrize(
    "text",
    [
        "Ada is a knight\nBen is a knave\nCleo is a knight",
        "Ada is a knight, Ben is a knave, and Cleo is a knight.",
        "cleo IS A KNIGHT; ben is a KNAVE; ada is a knight",
        "(1) Ada is a knight (2) Ben is a knave (3) Cleo is a knight",
        "1. Ada is a knight.\n2. Ben is a knave.\n3. Cleo is a knight.",
        "- **Ada**: knight\n- **Ben**: knave\n- **Cleo**: knight",
        "Ada = knight, Ben = knave, Cleo = knight",
        "Ada -> knight\nBen -> knave\nCleo -> knight",
        "Ada: a knight\nBen: a knave\nCleo: the knight",
        "Ada is not a knave. Ben is not a knight. Cleo is not a knave.",
        "Ada is a knight. Ada is a knight. Ben is a knave. Cleo is a knight. Ben is not a knight.",
        "So: Ada is a knight\nTherefore Ben is a knave\nand Cleo is a knight",
        "We are done!\n\n  Ada   is a\tknight \r\nBen is a knave\r\nCleo is a knight\r\n",
    ],
)
def test_plain_claims_are_read_in_any_order_case_and_layout(text):
    assert verbose_reading(text, CAST) == SOLUTION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ada is a knight, Ben is a knave",
        "Ada is a knight, Ben is a knave, Cleo is a knight, Cleo is a knave",
        "Ada is a knight, Ben is a knave, Cleo is a knight, Cleo is not a knight",
        "Ada is a knight, Ben is a knave, Cleo is a knight or a knave",
        "Ada is either a knight or a knave, Ben is a knave, Cleo is a knight",
        "If Ada is a knight, Ben is a knave, Cleo is a knight",
        "It is false that Ada is a knight, Ben is a knave, Cleo is a knight",
        "Ada is a knight, Ben is a knave, Cleo is a knight, Dan is a knave",
        "Ada is a knight, Ben is a knave, Cleo is a knight?",
        "Ada is a knightly person, Ben is a knave, Cleo is a knight",
        "Ada is a knight Ben is a knave Cleo is a knight",
        "Adam is a knight, Ben is a knave, Cleo is a knight",
        "Ada is not not a knight, Ben is a knave, Cleo is a knight",
        "Ada is never a knight, Ben is a knave, Cleo is a knight",
        "Ada, Ben, Cleo: knight, knave, knight",
        "knight knave knight",
        "Ada is a hero, Ben is a villain, Cleo is a hero",
        "\u0391da is a knight, Ben is a knave, Cleo is a knight",  # a Greek capital alpha
        "Ada is a kn\u0131ght, Ben is a knave, Cleo is a knight",
        "Ada is a knight, Ben is a knave, Cl\u200beo is a knight",
        "\uff21da is a knight, Ben is a knave, Cleo is a knight",
        "Ada is a knight, Ben is a knave, Cleo is a knight, " + "x" * 10_000,
    ],
)
def test_anything_unclear_incomplete_or_contradictory_is_no_answer(text):
    assert verbose_reading(text, CAST) is None


def test_a_wrong_answer_is_read_as_what_it_says():
    assert verbose_reading("Ada is a knave, Ben is a knave, Cleo is a knight", CAST) == (False, False, True)


def test_names_that_begin_alike_and_other_role_words():
    cast = Cast(names=("Ann", "Anna", "Anna Lee"), words=("angel", "devil"))
    assert verbose_reading("Anna Lee is a devil, Anna is an angel, Ann is a devil", cast) == (False, True, False)
    swapped = Cast(names=("Ann", "Bo"), words=("knave", "knight"))  # as in the published flip_role data
    assert verbose_reading("Ann is a knave, Bo is a knight", swapped) == (True, False)


@pytest.mark.parametrize("text", ["AkBnCk", " CkAkBn\n", "BnCkAk"])
def test_terse_answers_name_each_person_once_in_any_order(text):
    assert terse_reading(text, 3) == SOLUTION


@pytest.mark.parametrize(
    "text",
    ["", "AkBn", "AkBnCkCk", "AkBnAk", "AkBnDk", "akbnck", "A kBnCk", "AkBnC", "AkBnCx", "=AkBnCk", "\uff21kBnCk"],
)
def test_anything_else_is_no_terse_answer(text):
    assert terse_reading(text, 3) is None


@pytest.mark.parametrize("options", STYLES)
def test_the_promises_of_an_environment_hold(options):
    report = validate_environment(load_environment("knights_knaves", options, seed=4), items=12, junk_items=4)
    assert report.ok, report.lines()
    assert report.junk_kinds >= 20


@pytest.mark.parametrize("options", STYLES)
@pytest.mark.parametrize("kind", sorted(JUNK))
def test_junk_earns_0(options, kind):
    environment = load_environment("knights_knaves", options)
    assert environment.start(environment.task(0)).reply(JUNK[kind]) == Reply(reward=0.0)


def test_reasoning_stands_before_the_tags_and_does_not_count():
    environment = load_environment("knights_knaves", {"rows": 1})
    task = environment.task(0)
    gold = environment.gold(task, task.messages)
    opposite = gold.replace("knight", "?").replace("knave", "knight").replace("?", "knave")

    def reward(text):
        return environment.start(task).reply(text).reward

    assert reward(f"If {gold} then... no: {opposite} <answer> cannot be. {gold} That is it.") == 1.0
    assert reward(opposite) == 0.0
    assert reward(f"{gold} {opposite}") == 0.0
    assert reward(gold.replace("<answer>", "")) == 0.0
    assert reward(task.reference.answer) == 0.0
    assert reward(f"<answer>{task.reference.answer}</answer>") == 1.0
    whole = load_environment("knights_knaves", {"rows": 1, "answer_tags": False})
    assert whole.start(whole.task(0)).reply(task.reference.answer).reward == 1.0


def test_long_hostile_answers_cost_little():
    began = time.process_time()
    for text in ("so " * 100_000, "(1)" * 3000, "and " * 2400, " " * 9_999, "Ada is a " * 1100, "-" * 9_999):
        assert verbose_reading(text, CAST) is None
        assert verbose_reading(f"{text[:9000]} Ada is a knight", CAST) is None
    assert time.process_time() - began < 1


def test_rows_outside_the_environment_are_refused():
    environment = load_environment("knights_knaves", {"rows": 2})
    for row in (-1, 2):
        with pytest.raises(IndexError, match=str(row)):
            environment.task(row)
