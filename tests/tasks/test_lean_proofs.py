"""What is taken from a response, comments, refused words; no compiler needed."""

import time

import pytest

from lecritique.tasks.junk import JUNK
from lecritique.tasks.lean.checking import Compilation, LeanMessage, checked_body, judged
from lecritique.tasks.lean.proofs import (
    REFUSED_WORDS,
    Refused,
    refusal,
    taken_proof,
    theorem_name,
    trimmed_statement,
    without_comments,
)

STATEMENT = "theorem t (p : Prop) (h : p) : p"


def block(proof):
    return f"text\n```lean\n{proof}\n```\ntext"


@pytest.mark.parametrize(
    ("text", "proof"),
    [
        (block("by exact h"), "by exact h"),
        (block(":= by exact h"), "by exact h"),
        (block("h"), "h"),
        ("```lean4\nh\n```", "h"),
        ("```\nh\n```", "h"),
        (block("wrong") + block("h"), "h"),
        (block(f"{STATEMENT} := by\n  exact h"), "by\n  exact h"),
        (block(f"import Mathlib\nopen Real\n\n{STATEMENT}\n  := h"), "h"),
        (block("theorem t (p:Prop)\n    (h : p) :\n  p := h"), "h"),
        (block("lemma s : q := h\n" + STATEMENT + " := h"), "h"),
        (block("by -- first\n  exact h /- then /- nested -/ end -/"), "by         \n  exact h"),
    ],
)
def test_the_proof_in_a_response(text, proof):
    assert taken_proof(text, STATEMENT) == proof


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("by exact h", "no Lean code block"),
        ("```lean\nby exact h", "no Lean code block"),
        ("", "no Lean code block"),
        (block(""), "empty"),
        (block("-- nothing"), "empty"),
        (block(f"{STATEMENT} :="), "empty"),
        (block("theorem t : True := trivial"), "another theorem"),
        (block("theorem t (p : Prop) (h : False) : p := h.elim"), "another theorem"),
        (block("theorem t (p : Prop) (h : p) (g : False) : p := h"), "another theorem"),
        (block(f"{STATEMENT} ∧ True := h"), "another theorem"),
        (block("example : True := trivial"), "another theorem"),
        (block("x" * 60_000), "longer than"),
        (block(f"{STATEMENT} := h\n\n{STATEMENT} := h"), "`theorem`"),
    ],
)
def test_a_response_without_a_proof_of_our_statement(text, words):
    proof = taken_proof(text, STATEMENT)
    assert isinstance(proof, Refused) and words in proof.reason


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a -- b\nc", "a     \nc"),
        ("a /- b -/ c", "a         c"),
        ("a /- b /- c -/ d -/ e", "a " + 17 * " " + " e"),
        ("a /- b\nc -/ d", "a     \n     d"),
        ("a /-- doc -/ b", "a            b"),
        ("a /- -- -/ b", "a          b"),
        ('a /- " -/ b', "a         b"),
        ('"a -- b" c', '"a -- b" c'),
        (r'"a \" -- b" c', r'"a \" -- b" c'),
        ("a /-/ b -/ c", "a          c"),
        ("a /- open", "a        "),
        ('"open -- x', '"open -- x'),
        ("x - y / z", "x - y / z"),
        ("", ""),
    ],
)
def test_comments_become_spaces(text, left):
    assert without_comments(text) == left
    assert len(left) == len(text)


def test_hostile_text_is_read_in_linear_time():
    for text in ("/-" * 50_000, "-/" * 50_000, '"' * 50_001, '"\\' * 50_000, "--" * 50_000, "```lean\n" * 20_000):
        begun = time.perf_counter()
        without_comments(text), taken_proof(text, STATEMENT), taken_proof(block(text[:49_000]), STATEMENT)
        assert time.perf_counter() - begun < 3.0


NOTES = (
    "axiom sorry admit native_decide unsafe implemented_by extern opaque macro syntax elab notation #eval run_cmd "
    "initialize set_option import"
)


@pytest.mark.parametrize("word", [*NOTES.split(), *sorted(REFUSED_WORDS)])
def test_refused_words_wherever_they_stand(word):
    for proof in (
        f"by {word} x", f"h\n{word} x", f"(({word}))", f"foo.{word}", f'"{word}"', f"h;{word}", f"h\n\n\n  {word}",
        f'f "a" {word} "b"',
    ):  # fmt: skip
        assert refusal(proof) is not None and isinstance(taken_proof(block(proof), STATEMENT), Refused), proof


@pytest.mark.parametrize(
    "proof",
    [
        "h\n#print axioms t",
        "h\n# eval 1",
        "h\n#exit",
        "h\n@[simp]",
        "h\nopen Nat",
        "h\nopen Nat\nin_",
        "open Nat hiding x",
        "«sorry»",
        "by s\u200borry",
        "by sorr\u0443",
        "by \u0455orry",
        "by s\u03bfrry",
        "by \uff53\uff4f\uff52\uff52\uff59",
        "by \U0001d42c\U0001d428\U0001d42b\U0001d42b\U0001d432",
        "h \u202e",
        "h \x00",
        "h \ud800",
        "h\u2028x",
        "/- never closed",
        "-/ closed twice",
        '"a string -- that looks like a comment"',
    ],
)
def test_other_ways_in_are_refused(proof):
    assert refusal(proof) is not None


@pytest.mark.parametrize(
    "proof",
    [
        "by\n  intro x y\n  simp [foo.bar, h₁] at *\n  nlinarith [sq_nonneg (a - b)]",
        "open Real in by exact pi_pos",
        "by open Nat Finset in\n  decide",
        "by\n  have : f '' s ⊆ t := by aesop\n  exact this",
        "fun ⟨a, b⟩ => ⟨b, a⟩",
        "by\n  rcases h with ⟨x, hx | hx⟩ <;> linarith",
        "by norm_num [Nat.prefix_sum, endpoint, sorryish]",
        "by\n  calc a = b := by ring\n  _ = c := by field_simp",
        "by rw [show (#s = 3) from h]",
        "h.trans (Eq.symm k)",
    ],
)
def test_honest_proofs_are_not_refused(proof):
    assert refusal(proof) is None


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_is_taken_without_exception(junk):
    for text in (junk, block(junk), block(f"{STATEMENT} := {junk}")):
        assert isinstance(taken_proof(text, STATEMENT), str | Refused)


@pytest.mark.parametrize(
    ("given", "trimmed"),
    [
        ("theorem a : p := by sorry", "theorem a : p"),
        ("theorem a : p := sorry", "theorem a : p"),
        ("theorem a : p := by\n", "theorem a : p"),
        ("theorem a : p :=", "theorem a : p"),
        ("theorem a : p", "theorem a : p"),
        ("theorem a (h : x = 1 := by rfl) : p := by", "theorem a (h : x = 1 := by rfl) : p"),
    ],
)
def test_statements_of_data_sets_are_cut_before_their_proof(given, trimmed):
    assert trimmed_statement(given) == trimmed


def test_names_of_theorems():
    assert theorem_name("theorem a.b' (x : p) : q") == "a.b'" and theorem_name("theorem a: q") == "a"
    assert theorem_name("example : q") is None and theorem_name("") is None


def judge(*messages, sorries=0, outcome="compiled"):
    body = checked_body(STATEMENT, "h")
    compiled = tuple(LeanMessage(severity=s, line=line, text=text) for s, line, text in messages)
    return judged(Compilation(outcome=outcome, messages=compiled, sorries=sorries), STATEMENT, "h"), body


NO_AXIOMS = "'t' does not depend on any axioms"
LAST = 4


def test_the_question_about_axioms_is_the_last_line():
    assert judge()[1].splitlines()[LAST - 1] == "#print axioms t"


@pytest.mark.parametrize(
    "text",
    [
        NO_AXIOMS,
        "'t' depends on axioms: [propext]",
        "'t' depends on axioms: [propext,\n Classical.choice,\n Quot.sound]",
        "'Foo.t' does not depend on any axioms",
    ],
)
def test_accepted(text):
    warning = ("warning", 1, "unused variable `p`")
    assert judge(warning, ("information", LAST, text))[0].accepted


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [("information", 2, NO_AXIOMS)],
        [("information", LAST, NO_AXIOMS), ("information", LAST, NO_AXIOMS)],
        [("information", 2, NO_AXIOMS), ("information", LAST, "'t' depends on axioms: [cheat]")],
        [("warning", LAST, NO_AXIOMS)],
        [("information", LAST, "'s' does not depend on any axioms")],
        [("information", LAST, "'xt' does not depend on any axioms")],
        [("information", LAST, NO_AXIOMS + " really")],
        [("information", LAST, "'t' depends on axioms: [sorryAx]")],
        [("information", LAST, "'t' depends on axioms: [propext, Lean.ofReduceBool]")],
        [("error", 2, "unsolved goals"), ("information", LAST, NO_AXIOMS)],
        [("error", 0, "unknown"), ("information", LAST, NO_AXIOMS)],
        [("warning", 1, "declaration uses 'sorry'"), ("information", LAST, NO_AXIOMS)],
    ],
)
def test_not_accepted(messages):
    verdict, _ = judge(*messages)
    assert not verdict.accepted and verdict.feedback


def test_sorries_and_limits_are_not_accepted():
    answer = ("information", LAST, NO_AXIOMS)
    assert judge(answer)[0].accepted and not judge(answer, sorries=1)[0].accepted
    assert "too long" in judge(answer, outcome="timeout")[0].feedback
    assert "memory" in judge(answer, outcome="exhausted")[0].feedback
