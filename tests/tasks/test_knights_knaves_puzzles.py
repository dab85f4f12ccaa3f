"""Generated puzzles and their worked solutions, judged by enumeration."""

import random
import time

import pytest
from knights_oracle import check_steps, is_true, solutions_by_enumeration

from lecritique.core.errors import ConfigurationError
from lecritique.tasks.knights_knaves.deduction import concluded, forced_by, value_of, worked_steps
from lecritique.tasks.knights_knaves.generator import KINDS, PuzzleSource, content_hash, is_held_out
from lecritique.tasks.knights_knaves.logic import checked_statement, solutions, truth_table
from lecritique.tasks.knights_knaves.wording import (
    Cast,
    terse_answer,
    terse_puzzle,
    terse_solution,
    verbose_answer,
    verbose_puzzle,
    verbose_solution,
    verbose_statement,
)
from lecritique.tasks.registry import load_environment
from tests.tasks.two_processes import printed_under_two_hash_seeds

A, B, C = range(3)
# A: "B is a knave." B: "A and C are knights." C: "Not: A is a knave." Only A k, B n, C k agrees.
HAND = (
    ("lying", B),
    ("and", ("telling-truth", A), ("lying", C)),
    ("not", ("lying", A)),
)
CAST = Cast(names=("Ada", "Ben", "Cleo"))


def source(roles, *, seed=0, kinds=KINDS, max_depth=2, held_out=False):
    return PuzzleSource(
        min_roles=roles, max_roles=roles, kinds=kinds, max_depth=max_depth, held_out=held_out, seed=seed
    )


def random_statement(rng, roles, depth):
    """Any statement, also those that the generator does not make."""
    kind = rng.choice(["telling-truth", "lying", "exactly", "at-least", "at-most", "not", "and", "or", "->", "<=>"])
    if depth == 0 or kind in ("telling-truth", "lying"):
        return (rng.choice(["telling-truth", "lying"]), rng.randrange(roles))
    if kind in ("exactly", "at-least", "at-most"):
        return (kind, rng.randrange(roles + 1))
    count = {"not": 1, "->": 2, "<=>": 2}.get(kind) or rng.randrange(2, 4)
    return (kind, *(random_statement(rng, roles, depth - 1) for _ in range(count)))


def test_a_puzzle_by_hand():
    assert solutions_by_enumeration(HAND) == [(True, False, True)] == solutions(HAND)
    assert terse_puzzle(HAND) == "A:Bn B:Ak&Cn C:~An"
    assert terse_answer((True, False, True)) == "AkBnCk"
    steps = worked_steps(HAND)
    # Were A a knave, A would lie, so B would be a knight; but then B would lie about A.
    assert terse_solution(steps, (True, False, True)) == "(An:Bk:A!B)AkBn:ACk:B=AkBnCk"
    assert verbose_solution(steps, HAND, (True, False, True), CAST).split("\n") == [
        "Suppose that Ada is a knave.",
        "  Ada is a knave and says that Ben is a knave, which must be false; so Ben is a knight.",
        "  But Ben is a knight and says that Ada is a knight and Cleo is a knave, which is false, because Ada is a "
        "knave: a contradiction.",
        "Hence Ada is a knight.",
        "Ada is a knight and says that Ben is a knave, which must be true; so Ben is a knave.",
        "Ben is a knave and says that Ada is a knight and Cleo is a knave, which must be false, because Ada is a "
        "knight; so Cleo is a knight.",
        "So Ada is a knight, Ben is a knave, Cleo is a knight.",
    ]


@pytest.mark.parametrize(
    ("statement", "terse", "verbose"),
    [
        (("exactly", 1), "#=1", "exactly one of us is a knight"),
        (("at-least", 2), "#>2", "at least two of us are knights"),
        (("at-most", 0), "#<0", "at most zero of us are knights"),
        (("->", ("lying", 0), ("telling-truth", 2)), "An>Ck", "if Ada is a knave, then Cleo is a knight"),
        (
            ("<=>", ("lying", 0), ("exactly", 2)),
            "An=(#=2)",
            "Ada is a knave exactly when exactly two of us are knights",
        ),
        (
            ("or", ("and", ("lying", 0), ("lying", 1)), ("not", ("lying", 2))),
            "(An&Bn)|~Cn",
            "(Ada is a knave and Ben is a knave) or (it is not true that Cleo is a knave)",
        ),
        (
            ("not", ("or", ("lying", 0), ("lying", 1))),
            "~(An|Bn)",
            "it is not true that (Ada is a knave or Ben is a knave)",
        ),
    ],
)
def test_statements_in_symbols_and_in_words(statement, terse, verbose):
    said = (statement, ("lying", 0), ("lying", 0))
    assert terse_puzzle(said) == f"A:{terse} B:An C:An"
    assert verbose_statement(statement, CAST) == verbose


def test_truth_tables_equal_enumeration():
    rng = random.Random(5)
    for _ in range(300):
        roles = rng.randrange(2, 6)
        statement = random_statement(rng, roles, 3)
        table = truth_table(statement, roles)
        for number in range(2**roles):
            assignment = [bool(number >> person & 1) for person in range(roles)]
            assert bool(table >> number & 1) is is_true(statement, assignment)
        assert checked_statement(eval(repr(statement)), roles) == statement


def test_values_and_forced_roles_follow_from_the_roles_they_name():
    rng = random.Random(6)
    decided = forced = 0
    for _ in range(1500):
        roles = rng.randrange(2, 6)
        statement = random_statement(rng, roles, 2)
        known = {person: rng.random() < 0.5 for person in range(roles) if rng.random() < 0.6}
        value, uses = value_of(statement, known, roles)
        if value is not None:
            decided += 1
            assert truths(statement, {p: known[p] for p in uses}, roles) == {value}
            continue
        for wanted in (True, False):
            for person, knight, why in forced_by(statement, wanted, known, roles):
                if person in known:
                    continue
                forced += 1
                contrary = {**{p: known[p] for p in why}, person: not knight}
                assert truths(statement, contrary, roles) <= {not wanted}
    assert decided > 300 and forced > 300


def truths(statement, roles_known, roles):
    """The values that the statement takes over all assignments with the known roles."""
    found = set()
    for number in range(2**roles):
        assignment = [bool(number >> person & 1) for person in range(roles)]
        if all(assignment[person] is knight for person, knight in roles_known.items()):
            found.add(is_true(statement, assignment))
    return found


@pytest.mark.parametrize("roles", range(2, 13))
def test_puzzles_have_one_solution_that_is_worked_out_step_by_step(roles):
    check_puzzles(roles, count=20 if roles < 10 else 4)


@pytest.mark.slow
@pytest.mark.parametrize("roles", range(4, 12))
def test_a_thousand_worked_solutions_of_each_size_lead_to_the_unique_assignment(roles):
    check_puzzles(roles, count=1000, steps_checked=60 if roles > 8 else None)


def check_puzzles(roles, *, count, steps_checked=None):
    """Each puzzle is new, has one solution, and its worked solution leads there; single steps of the first ones too."""
    puzzles = source(roles, seed=roles)
    seen = set()
    for row in range(count):
        puzzle = puzzles.puzzle(row)
        steps = worked_steps(puzzle.statements)
        assert concluded(steps, roles) == puzzle.solution
        assert terse_solution(steps, puzzle.solution).rpartition("=")[2] == terse_answer(puzzle.solution)
        if steps_checked is None or row < steps_checked:
            known = {}
            check_steps(puzzle.statements, steps, known)
            assert tuple(known[person] for person in range(roles)) == puzzle.solution
        assert solutions_by_enumeration(puzzle.statements) == [puzzle.solution]
        seen.add(puzzle.statements)
    assert len(seen) == count


def test_statements_with_no_or_several_solutions_are_not_worked_out():
    with pytest.raises(ValueError, match="contradict"):
        worked_steps((("lying", 0), ("telling-truth", 0)))
    with pytest.raises(ValueError, match="more than one"):
        worked_steps((("telling-truth", 1), ("telling-truth", 0)))


@pytest.mark.parametrize("kind", ["and", "or", "implies", "iff"])
def test_one_kind_of_statement_is_enough_and_is_all_that_is_used(kind):
    named = {"implies": "->", "iff": "<=>"}.get(kind, kind)
    for row in range(10):
        for said in source(4, kinds=[kind], max_depth=1).puzzle(row).statements:
            assert said[0] == named
            assert all(part[0] in ("telling-truth", "lying") for part in said[1:])


def test_nobody_just_names_their_own_role_and_every_kind_occurs():
    said = [(i, s) for row in range(150) for i, s in enumerate(source_5.puzzle(row).statements)]
    assert all(s[1] != i for i, s in said if s[0] in ("telling-truth", "lying"))
    assert {s[0] for _, s in said} == {
        *("telling-truth", "lying", "not", "and", "or", "->", "<=>", "exactly", "at-least", "at-most")
    }
    roles = [knight for row in range(150) for knight in source_5.puzzle(row).solution]
    assert 0.42 < sum(roles) / len(roles) < 0.58


source_5 = source(5, seed=3)


def test_parts_share_no_puzzle_whatever_the_seeds():
    one, other = source(3, seed=1, max_depth=1), source(3, seed=2, max_depth=1, held_out=True)
    train = {one.puzzle(row).content for row in range(400)}
    held_out = {other.puzzle(row).content for row in range(100)}
    assert len(train) == 400 and len(held_out) == 100 and not train & held_out
    assert all(is_held_out(content) for content in held_out) and not any(map(is_held_out, train))


def test_the_papers_splits():
    expected = {
        "train": (4, 8, 5000),
        "held_out": (4, 8, 500),
        "roles_9": (9, 9, 100),
        "roles_10": (10, 10, 100),
        "roles_11": (11, 11, 100),
    }
    ids = {}
    for split, (fewest, most, rows) in expected.items():
        environment = load_environment("knights_knaves", {"split": split, "style": "terse"})
        assert len(environment) == rows
        tasks = [environment.task(row) for row in range(10)]
        assert {task.metadata["roles"] for task in tasks} <= set(range(fewest, most + 1))
        ids[split] = {task.task_id for task in tasks}
    assert sum(map(len, ids.values())) == len(set.union(*ids.values()))
    assert load_environment("knights_knaves", {}).options.split == "train"
    sizes = [load_environment("knights_knaves", {}).task(row).metadata["roles"] for row in range(10)]
    assert sizes == [4, 5, 6, 7, 8] * 2


def test_rows_do_not_depend_on_the_number_of_rows_or_on_the_order_of_asking():
    long, short = source(3, seed=5), source(3, seed=5)
    assert [short.puzzle(row) for row in reversed(range(40))] == [long.puzzle(row) for row in range(40)][::-1]
    assert {source(3, seed=6).puzzle(row).content for row in range(5)} != {
        short.puzzle(row).content for row in range(5)
    }


def test_two_processes_with_different_hash_seeds_see_the_same_rows():
    script = (
        "from lecritique.tasks.registry import load_environment as load\n"
        "terse = {'rows': 20, 'style': 'terse', 'min_roles': 2}\n"
        "for options in ({'rows': 20}, terse, {'split': 'roles_9', 'rows': 3}):\n"
        "    e = load('knights_knaves', options, seed=3)\n"
        "    print([(t.task_id, t.messages, t.reference) for t in map(e.task, range(len(e)))])\n"
    )
    outputs = printed_under_two_hash_seeds(script)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10_000


def test_the_puzzles_of_a_seed_are_pinned():
    environment = load_environment("knights_knaves", {"style": "terse"}, seed=0)
    assert environment.task(0).messages[0].content == PINNED


PINNED = "A:(Cn>An)=Cn B:~Cn C:Dk=Cn D:Cn"


def test_generation_and_worked_solutions_are_fast():
    began = time.process_time()
    environment = load_environment("knights_knaves", {"split": "roles_11", "rows": 40})
    for row in range(40):
        environment.task(row)
    # reasoning-gym takes 14 seconds for as many puzzles, without worked solutions.
    assert time.process_time() - began < 2.5


def test_more_rows_than_puzzles_is_an_error_that_names_the_keys(monkeypatch):
    monkeypatch.setattr("lecritique.tasks.knights_knaves.generator._MAX_DRAWS", 50)
    puzzles = source(2, kinds=["role", "and"], max_depth=1)
    with pytest.raises(ConfigurationError, match=r"task.rows: no new puzzle of 2 roles.*task.kinds than role, and"):
        puzzles.puzzle(400)


def test_content_hash_tells_puzzles_apart():
    assert content_hash(HAND) == content_hash(eval(repr(HAND))) != content_hash(HAND[::-1])


def test_wording_varies_only_where_asked_and_names_differ():
    said = {}
    for wording in ("plain", "varied"):
        environment = load_environment(
            "knights_knaves", {"wording": wording, "names": "uncommon", "role_words": "hero"}
        )
        tasks = [environment.task(row) for row in range(6)]
        said[wording] = [task.messages[0].content for task in tasks]
        for task in tasks:
            assert len(set(task.metadata["names"])) == task.metadata["roles"]
            assert "knight" not in task.messages[0].content + task.reference.answer + task.reference.solution
            assert task.reference.solution.endswith(f"So {task.reference.answer}.")
    assert all(" says that " in text for text in said["plain"])
    assert any("According to" in text or "You hear" in text for text in said["varied"])
    lines = verbose_puzzle(HAND, CAST, wording="plain", seed=0).split("\n")
    assert lines[2:5] == [
        "Ada says that Ben is a knave.",
        "Ben says that Ada is a knight and Cleo is a knave.",
        "Cleo says that it is not true that Ada is a knave.",
    ]
    assert verbose_answer((True, False, True), Cast(names=CAST.names, words=("angel", "devil"))).startswith(
        "Ada is an angel"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_roles": 1}, "task.min_roles.*got 1.*2"),
        ({"max_roles": 13}, "task.max_roles.*got 13.*12"),
        ({"min_roles": 6, "max_roles": 3}, "min_roles = 6 is above max_roles = 3"),
        ({"kinds": []}, "at least one kind"),
        ({"kinds": ["or", "or"]}, "none twice"),
        ({"kinds": ["not", "role"]}, "never decide a puzzle"),
        ({"kinds": ["xor"]}, "task.kinds.0.*got 'xor'"),
        ({"split": "roles_9", "min_roles": 4}, 'split = "roles_9" has its own number of roles, got 4 to 9'),
        ({"style": "terse", "names": "common"}, 'names is for style = "verbose"'),
        ({"style": "terse", "answer_tags": False}, 'answer_tags is for style = "verbose"'),
        ({"path": "x.jsonl", "split": "train"}, "split is for generated puzzles, got path = 'x.jsonl'"),
        ({"path": "x.jsonl", "style": "terse"}, "a file brings its own wording"),
        ({"path": "no such file.jsonl"}, "task.path = 'no such file.jsonl' cannot be read"),
        ({"splits": "train"}, "did you mean 'split'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load_environment("knights_knaves", options)
