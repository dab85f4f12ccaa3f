"""How Sudoku is played: rules, wrong digits, retries, hostile text."""

import itertools

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError
from lecritique.core.task import Reply, Task
from lecritique.tasks.junk import JUNK
from lecritique.tasks.registry import load_environment
from lecritique.tasks.sudoku.environment import read_digit

FORMS = [
    {"form": form, "style": style, "size": size, "rows": 5}
    for form in ("single_turn", "multi_turn")
    for style in ("terse", "verbose")
    for size in (4, 9)
]

LAST_NUMBER = [
    {"form": "multi_turn", "style": "verbose", "answer_from": "last_number", "size": size, "rows": 5} for size in (4, 9)
]


def task_of(environment, puzzle, solution):
    """A task with a puzzle of our own."""
    row = environment.task(0)
    return Task(
        task_id="own", messages=row.messages, reference=row.reference, metadata={"puzzle": puzzle, "solution": solution}
    )


# Row 1 misses 1 2 3 4 at c1, c2 (box 1) and c3; solution 1234 3412 2143 4321.
SOLUTION = "1234341221434321"


@pytest.fixture
def multi():
    return load_environment("sudoku", {"form": "multi_turn", "rows": 1})


@pytest.mark.parametrize("options", [*FORMS, *LAST_NUMBER])
def test_gold_earns_1_and_anything_after_a_wrong_step_earns_0(options):
    environment = load_environment("sudoku", options)
    for row in range(5):
        task = environment.task(row)
        episode, messages, turns = environment.start(task), list(task.messages), 0
        reply = None
        while reply is None or not reply.done:
            reply = episode.reply(environment.gold(task, messages))
            messages += reply.messages
            turns += 1
        assert reply.reward == 1.0
        assert turns == (task.metadata["empty"] if options["form"] == "multi_turn" else 1)


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("kind", sorted(JUNK))
def test_junk_earns_0_at_once(options, kind):
    environment = load_environment("sudoku", options)
    assert environment.start(environment.task(0)).reply(JUNK[kind]) == Reply(reward=0.0)


@pytest.mark.parametrize("options", LAST_NUMBER)
def test_junk_earns_0_in_the_end_where_it_may_end_with_a_digit(options):
    environment = load_environment("sudoku", options)
    for kind, text in JUNK.items():
        episode = environment.start(environment.task(0))
        replies = list(itertools.takewhile(lambda r: not r.done, (episode.reply(text) for _ in range(2))))
        assert len(replies) < 2, kind  # the digit that was legal once stands in the row, column or box now


def test_single_turn_terse_wants_exactly_the_grid():
    environment = load_environment("sudoku", {"rows": 1})
    task = environment.task(0)
    solution = task.metadata["solution"]
    assert task.messages[0].content == task.metadata["puzzle"]
    assert task.reference.answer == solution

    def reward(text):
        return environment.start(task).reply(text).reward

    assert reward(f"  {solution}\n") == 1.0
    swapped = solution.translate(str.maketrans("12", "21"))
    for wrong in (solution[:-1], solution + solution[-1], " ".join(solution), swapped, task.metadata["puzzle"]):
        assert reward(wrong) == 0.0, wrong
    full_width = "".join(chr(ord("\uff10") + int(digit)) for digit in solution)
    assert reward(full_width) == 0.0


def test_single_turn_verbose_reads_the_last_complete_pair_of_tags():
    environment = load_environment("sudoku", {"style": "verbose", "rows": 1})
    task = environment.task(0)
    solution = task.metadata["solution"]
    lines = "\n".join(" ".join(solution[start : start + 4]) for start in range(0, 16, 4))

    def reward(text):
        return environment.start(task).reply(text).reward

    assert reward(f"First try <answer>1</answer>, no: <answer>{lines}</answer> done") == 1.0
    assert reward(f"<answer>{lines}</answer> or <answer>1</answer>") == 0.0
    assert reward(lines) == 0.0
    assert reward(f"<answer>{lines}") == 0.0
    assert reward(f"</answer>{lines}<answer>") == 0.0
    assert task.reference.answer == lines


def test_multi_turn_terse_messages(multi):
    task = multi.task(0)
    puzzle, solution = task.metadata["puzzle"], task.metadata["solution"]
    names = "abcdefghijklmnop"
    empty = [names[cell] for cell in range(16) if puzzle[cell] == "."]
    board = "".join(name + symbol for name, symbol in zip(names, puzzle, strict=True))
    assert task.messages[0].content == f"{board} {empty[0]}"
    assert task.reference.answer == "".join(n + d for n, d in zip(names, solution, strict=True))
    episode = multi.start(task)
    for here, following in itertools.pairwise(empty):
        reply = episode.reply(solution[names.index(here)])
        assert [message.content for message in reply.messages] == [following]


def test_a_legal_digit_that_contradicts_the_solution_is_accepted_and_costs_the_reward(multi):
    # Two swapped pairs make a rectangle: a, b, e, f hold 1 2 / 2 1 or 2 1 / 1 2, both legal to the rules.
    solution, puzzle = "1234" + "3412" + "2143" + "4321", ".." + "34" + "3412" + ".." + "43" + "4321"
    task = task_of(multi, puzzle, solution)
    episode = multi.start(task)
    replies = [episode.reply(digit) for digit in "2112"]
    assert [message.content for reply in replies[:3] for message in reply.messages] == ["b", "i", "j"]
    assert replies[3] == Reply(reward=0.0)
    episode = multi.start(task)
    assert [episode.reply(digit) for digit in "1221"][-1] == Reply(reward=1.0)


def test_a_wrong_digit_can_leave_a_cell_without_a_legal_digit(multi):
    puzzle = "...4" + "34.." + ".14." + "43.1"
    task = task_of(multi, puzzle, SOLUTION)
    assert multi.start(task).reply("2").messages[0].content == "b"
    for digit in "1234":
        episode = multi.start(task)
        episode.reply("2")
        assert episode.reply(digit) == Reply(reward=0.0), digit


@pytest.mark.parametrize("bad", ["4", "3", "5", "0", "11", "1.", "", "b", "\u0661", "\uff11", "\u00b9", "-1", "1 1"])
def test_rule_breaking_and_malformed_answers_end_the_episode(multi, bad):
    # Cell a: 4 stands in its row, 3 in its box.
    task = task_of(multi, "...4" + "3412" + "2143" + "4321", SOLUTION)
    assert multi.start(task).reply(bad) == Reply(reward=0.0)


def test_an_episode_that_is_over_takes_no_further_turn(multi):
    episode = multi.start(multi.task(0))
    assert episode.reply("no").done
    with pytest.raises(ValueError, match="over"):
        episode.reply("1")


@pytest.mark.parametrize("style", ["terse", "verbose"])
def test_retry_asks_for_the_same_cell_until_the_retries_are_used_up(style):
    environment = load_environment(
        "sudoku", {"form": "multi_turn", "style": style, "on_invalid": "retry", "max_retries": 2, "rows": 1}
    )
    task = environment.task(0)
    first = task.messages[0].content.split()[-1]
    episode = environment.start(task)
    for _ in range(2):
        reply = episode.reply("nonsense")
        assert reply.messages[0].content.split()[-1] == first
    assert episode.reply("nonsense") == Reply(reward=0.0)
    # Retries count over the episode, and a solved grid after a retry still earns 1.
    episode, messages = environment.start(task), list(task.messages)
    reply = episode.reply("")
    while not reply.done:
        messages += reply.messages
        reply = episode.reply(environment.gold(task, messages))
    assert reply.reward == 1.0


def test_rows_outside_the_environment_are_refused(multi):
    for row in (-1, 1):
        with pytest.raises(IndexError, match=str(row)):
            multi.task(row)


def test_reasoning_stands_before_the_answer_in_every_turn():
    for answer_from, written in (("tags", "<answer>{}</answer>"), ("last_number", "so it is {}.")):
        options = {"form": "multi_turn", "style": "verbose", "answer_from": answer_from, "rows": 1}
        environment = load_environment("sudoku", options)
        task = environment.task(0)
        assert "you may reason before that" in task.messages[0].content
        solution = iter(d for d, p in zip(task.metadata["solution"], task.metadata["puzzle"], strict=True) if p == ".")
        episode, reply = environment.start(task), None
        while reply is None or not reply.done:
            thought = f"r1c2 holds 4, as row 3 (12%) shows; <answer>9</answer> breaks 1 rule. {'hm ' * 5000}"
            reply = episode.reply(thought + written.format(next(solution)))
        assert reply == Reply(reward=1.0)


@pytest.mark.parametrize(
    ("text", "digit"),
    [
        ("3", 3),
        ("The answer is 3.", 3),
        ("r1c2 = 3", 3),
        ("2, no: **3**", 3),
        ("3 as r1c2 and x4 are taken", 3),
        ("(3)", 3),
        ("3\n", 3),
        ("3 or 12", None),
        ("3 of 1.5", None),
        ("3 then 0", None),
        ("3 then 5", None),
        ("-", None),
        ("r1c3", None),
        ("\uff13", None),
        ("\u0663", None),
        ("3" + " " * 500, None),
        ("", None),
    ],
)
def test_the_last_number_of_a_turn(text, digit):
    options = load_environment(
        "sudoku", {"form": "multi_turn", "style": "verbose", "answer_from": "last_number", "rows": 1}
    ).options
    assert read_digit(text, options) == digit


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answer_from": "tags"}, 'answer_from = "tags" does not go with style = "terse"'),
        ({"answer_from": "turn", "style": "verbose"}, 'answer_from = "turn" does not go with style = "verbose"'),
        ({"answer_from": "last_number", "style": "verbose"}, 'needs form = "multi_turn"'),
    ],
)
def test_answers_are_read_where_they_can_be(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load_environment("sudoku", options)


def test_the_recipe_for_hard_puzzles_has_the_paper_s_shape():
    config = compose(load_recipe("sudoku-hard"))
    assert (config.rollout.batch_size, config.rollout.group_size) == (64, 4)
    assert (config.sampling.max_total_tokens, config.sampling.max_turn_tokens) == (32768, 8192)
    assert config.critic.context.type == "reference"
    environment = load_environment(config.task.type, {**config.task.options, "rows": 1})
    task = environment.task(0)
    assert len(environment) == 1 and config.task.options["rows"] == 5000
    assert task.metadata["difficulty"] >= 1
    assert task.reference.answer.replace(" ", "").replace("\n", "") == task.metadata["solution"]
