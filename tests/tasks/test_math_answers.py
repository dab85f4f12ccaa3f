"""Final answers as text: the last balanced box, normal forms, what counts as a word."""

import time

import pytest

from lecritique.tasks.junk import JUNK
from lecritique.tasks.math.answers import as_text, bare, is_word, last_box, same_text


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} but \boxed{2", "1"),
        (r"{ \boxed{3}", "3"),
        (r"} } \boxed{3} }", "3"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\{1, 2}", r"\{1, 2"),
        ("\\boxed  {5}", "5"),
        (r"\fbox{6}", "6"),
        (r"\boxed{}", ""),
        ("\\boxed{two\nlines}", "two\nlines"),
        (r"\boxed 7", None),
        (r"\boxed{8", None),
        (r"boxed{9}", None),
        (r"\\boxed{9}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box(text, box):
    assert last_box(text) == box


def test_boxes_are_found_in_linear_time():
    for text in (r"\boxed{" * 100_000, r"\boxed{1}" * 50_000, "{" * 300_000, "}" * 300_000):
        begun = time.perf_counter()
        last_box(text)
        assert time.perf_counter() - begun < 2.0


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("$1/3$", "1/3"),
        (" $$x$$ ", "x"),
        (r"\(x\)", "x"),
        (r"\[x\]", "x"),
        (r"so it is $\boxed{4}$", "4"),
        ("$a$ and $b$", "$a$ and $b$"),
        ("$", "$"),
        ("$$", "$$"),
        (r"\boxed{}", ""),
        ("", ""),
    ],
)
def test_a_bare_answer(answer, plain):
    assert bare(answer) == plain


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("Yes", r"\text{yes}"),
        (r"\text{Yes}.", "YES"),
        ("(B)", r"\textbf{(B)}"),
        ("B", r"\text{(B)}"),
        (r"\frac{1}{2}", r"\dfrac{1}{2}"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("x + 1", r"x\,+\;1"),
        ("50%", r"50\%"),
        ("-1", "\u22121"),
        ("Évariste", "évariste"),
    ],
)
def test_the_same_answer_as_text(gold, answer):
    assert same_text(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("x", "X"), ("1", "2"), ("12", "1 3"), ("Yes", "No"), ("No", "on"), (r"\leftarrow", "arrow"), ("1.", "1.0")],
)
def test_other_answers_stay_other(gold, answer):
    assert not same_text(gold, answer)


EMPTY = ["", " ", "$", "$$", "$ $", r"\text{}", r"\boxed{}", r"$\boxed{ }$", r"\, ~", ".", r"\left\right", "\u00a0"]


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_extraction_never_equals_anything(empty):
    """Fault 50."""
    assert as_text(empty) == ""
    assert not any(same_text(gold, empty) or same_text(empty, gold) for gold in ("1", "Yes", *EMPTY))


@pytest.mark.parametrize("word", ["yes", "No", "TRUE", "even", "Evelyn", "well-defined"])
def test_words(word):
    assert is_word(word)


@pytest.mark.parametrize("expression", ["x", "xy", "abc", "2n", "e^x", r"\pi", "", "a,b", "1"])
def test_what_is_no_word(expression):
    assert not is_word(expression)


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_is_taken_without_exception(junk):
    for text in (junk, f"\\boxed{{{junk}}}", f"${junk}$"):
        assert isinstance(last_box(text), str | None)
        assert isinstance(bare(text), str) and isinstance(as_text(text), str)
