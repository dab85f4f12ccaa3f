"""JSON from hostile hands: one comparison, hard limits, and answers out of text."""

import contextlib
import math
import time

import pytest

from lecritique.tasks.json_values import JsonRefused, parse_json, same_value
from lecritique.tasks.tagged import answered_json, last_json_text, tagged_answer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "1.0"),
        ("[1, 2]", "[1.0,2]"),
        ('{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1}'),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("0.0", "-0.0"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ('"\\u00e9"', '"é"'),
        ("null", " null "),
    ],
)
def test_equal_values(first, second):
    assert same_value(parse_json(first), parse_json(second))
    assert same_value(parse_json(second), parse_json(first))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ("1", '"1"'),
        ("[]", "{}"),
        ("[1, 2]", "[2, 1]"),
        ("[1]", "[1, 1]"),
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ('{"1": 1}', '{"2": 1}'),
        ("NaN", "0"),
        ("Infinity", "-Infinity"),
        ("9007199254740993", "9007199254740992"),
        ("[[1]]", "[1]"),
    ],
)
def test_different_values(first, second):
    assert not same_value(parse_json(first), parse_json(second))
    assert not same_value(parse_json(second), parse_json(first))


def test_a_tolerance_is_relative_and_for_numbers_alone():
    assert same_value(1000.0, 1000.0005, tolerance=1e-6)
    assert not same_value(1000.0, 1000.01, tolerance=1e-6)
    assert not same_value(0.0, 1e-12, tolerance=1e-6)
    assert not same_value(math.inf, 1e308, tolerance=1e-3)
    assert not same_value(1.0, 10**400, tolerance=1e-3)
    assert not same_value("1.0", "1.0000001", tolerance=1e-3)
    assert same_value([{"a": 1.0}], [{"a": 1 + 1e-9}], tolerance=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("1 2", "no JSON"),
        ("{'a': 1}", "no JSON"),
        ("True", "no JSON"),
        ('{"a": 1, "a": 2}', "names a key twice"),
        ("[" * 101 + "]" * 101, "nests deeper than 100"),
        ("[" * 100_000, "nests deeper"),
        ("1" * 5000, "5000 digits"),
        ('"' + "x" * (1 << 20) + '"', "at most 1048576"),
        ('{"a":' * 5000, "nests deeper"),
    ],
)
def test_what_is_refused_says_why(text, words):
    with pytest.raises(JsonRefused, match=words):
        parse_json(text)


def test_brackets_within_strings_do_not_nest():
    assert parse_json('["' + "[" * 500 + '\\"["]') == ["[" * 500 + '"[']
    assert parse_json("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer>", "1"),
        ("a <answer>1</answer> b <answer> 2 </answer> c", " 2 "),
        ("<answer><answer>1</answer>", "1"),
        ("<answer>1", None),
        ("1</answer>", None),
        ("</answer><answer>", None),
        ("<answer></answer>", ""),
        ("<answer>1</answer></answer>", "1</answer>"),
    ],
)
def test_the_last_closed_pair_of_tags_counts(text, answer):
    assert tagged_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("I think <answer>5</answer> is it", 5),
        ('It starts [1], then\n```json\n{"a": [1, 2]}\n```', {"a": [1, 2]}),
        ("```json\n5\n```", 5),
        ("<answer>```\n[1]\n```</answer>", [1]),
        ('first {"a": 1}, finally {"a": {"b": "}"}}.', {"a": {"b": "}"}}),
        ("x = [[1, 2], [3, 4]] done", [[1, 2], [3, 4]]),
        ("<answer>so it is [3]</answer> and not [4]", [3]),
    ],
)
def test_an_answer_is_found(text, value):
    assert answered_json(text) == value


@pytest.mark.parametrize("text", ["", "the answer is 5", "[1, 2", "<answer>none</answer> [1]", "}", "]["])
def test_no_answer_is_no_answer(text):
    with pytest.raises(JsonRefused):
        answered_json(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "]" * 100_000, "[" * 50_000 + "]" * 50_000, "{" * 50_000 + "}", '{"a":' * 20_000 + "}" * 20_000,
     "[1," * 50_000 + "]", '"' * 100_001 + "]", "<answer>" * 50_000, "[]" * 50_000 + "}", "{} " * 50_000 + "x]"],
)  # fmt: skip
def test_hostile_text_is_read_in_less_than_a_second(text):
    started = time.monotonic()
    for read in (answered_json, last_json_text):
        with contextlib.suppress(JsonRefused):
            read(text)
    assert time.monotonic() - started < 2.0
