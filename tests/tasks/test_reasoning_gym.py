"""Reasoning Gym: what is refused, what is fixed by the seed, and how scores become rewards."""

import pytest

from lecritique.core.errors import ConfigurationError, DataError, VerifierFailure
from lecritique.tasks.junk import JUNK
from lecritique.tasks.reasoning_gym.items import mixture_order
from lecritique.tasks.reasoning_gym.sets import FREEZE_FIRST, REFUSED
from lecritique.tasks.registry import load_environment, resolve_options
from lecritique.tasks.validate import validate_environment
from tests.tasks.two_processes import printed_under_two_hash_seeds

pytest.importorskip("reasoning_gym")

MIXTURE = [
    "chain_sum",
    "basic_arithmetic",
    "products",
    "decimal_chain_sum",
    "gcd",
    "lcm",
    "fraction_simplification",
    "simple_equations",
    "number_sequence",
    "base_conversion",
    "count_bits",
    "count_primes",
    "leg_counting",
    "letter_counting",
    "spell_backward",
    "caesar_cipher",
    "word_sorting",
    "calendar_arithmetic",
    "time_intervals",
    "family_relationships",
    "knights_knaves",
    "mini_sudoku",
]


def load(options, seed=0):
    return load_environment("reasoning_gym", options, seed=seed)


def library_scorer(environment):
    [scorer] = environment._scorers.values()
    return scorer._scorer


def first_question(environment, row=0):
    return environment.task(row).messages[0].content


@pytest.fixture
def chain_sum():
    return load({"dataset": "chain_sum", "rows": 20})


@pytest.mark.parametrize("name", sorted(REFUSED | FREEZE_FIRST))
def test_unsafe_and_unreproducible_data_sets_are_refused_with_the_reason(name):
    with pytest.raises(ConfigurationError, match=f"{name}.*refused"):
        load({"dataset": name})
    with pytest.raises(ConfigurationError, match=f"{name}.*refused"):
        load({"datasets": {"chain_sum": 1, name: 0.01}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of task.dataset and task.datasets"),
        ({"dataset": "gcd", "datasets": {"lcm": 1}}, "exactly one"),
        ({"dataset": "chain_sums"}, "'chain_sums'.*did you mean 'chain_sum'"),
        ({"datasets": {}}, "at least one name"),
        ({"datasets": {"gcd": 0}}, "weight above 0"),
        ({"dataset": "gcd", "dataset_options": {"seed": 1}}, "task.seed"),
        ({"dataset": "gcd", "dataset_options": {"size": 1}}, "task.rows"),
        ({"dataset": "gcd", "dataset_options": {"min_numbres": 1}}, "task.dataset_options.*min_numbres"),
        ({"dataset": "gcd", "dataset_options": {"min_numbers": -1}}, "task.dataset_options.*min_numbers"),
        ({"datasets": {"gcd": 1}, "dataset_options": {"gdc": {}}}, "task.dataset_options.gdc.*'gcd'"),
        ({"datasets": {"gcd": 1}, "dataset_options": {"gcd": 3}}, "must be a table"),
        ({"dataset": "gcd", "threshold": 0.0}, "task.threshold.*got 0"),
        ({"dataset": "gcd", "reward": "score", "threshold": 0.5}, "task.threshold"),
        ({"dataset": "gcd", "prompt_template": "{qestion}"}, r"\{qestion\}.*row 0.*did you mean 'question'"),
        ({"dataset": "gcd", "prompt_template": "{question.__class__}"}, "plain field names"),
        ({"dataset": "gcd", "prompt_template": "{question"}, "no template"),
        ({"dataset": "gcd", "prompt_template": " "}, "blank prompt"),
    ],
)
def test_options_that_cannot_be_run_are_named(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load(options)


def test_the_recommended_mixture_keeps_its_promises():
    environment = load({"datasets": dict.fromkeys(MIXTURE, 1.0), "rows": 2 * len(MIXTURE)})
    report = validate_environment(environment, junk_items=len(MIXTURE))
    assert report.ok, report.lines()
    assert {environment.task(row).metadata["dataset"] for row in range(len(environment))} == set(MIXTURE)


def test_questions_do_not_repeat_and_neighbouring_seeds_share_few():
    options = {"dataset": "chain_sum", "rows": 300, "dataset_options": {"min_digits": 3, "max_digits": 4}}
    environments = [load(options, seed) for seed in (1, 2)]
    sets = [{first_question(environment, row) for row in range(300)} for environment in environments]
    assert [len(questions) for questions in sets] == [300, 300]
    assert len(sets[0] & sets[1]) < 3


def test_small_question_spaces_are_drawn_without_repeats_until_they_are_empty():
    options = {"dataset": "chain_sum", "dataset_options": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}
    environment = load({**options, "rows": 120})
    assert len({first_question(environment, row) for row in range(120)}) == 120
    with pytest.raises(ConfigurationError, match=r"task.rows.*chain_sum.*fewer rows"):
        load({**options, "rows": 400})


def test_fewer_rows_are_the_first_of_more():
    long, short = (load({"datasets": {"gcd": 1, "lcm": 3}, "rows": rows}) for rows in (40, 10))
    assert [long.task(row).task_id for row in range(10)] == [short.task(row).task_id for row in range(10)]


def test_a_mixture_keeps_its_proportions_in_every_prefix():
    names = list(mixture_order({"a": 5, "b": 3, "c": 2}, 1000))
    for length in (10, 37, 500, 1000):
        for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
            assert abs(names[:length].count(name) - share * length) <= 1


def test_two_processes_with_different_hash_seeds_see_the_same_rows():
    script = (
        "from lecritique.tasks.registry import load_environment as load\n"
        f"e = load('reasoning_gym', {{'datasets': dict.fromkeys({MIXTURE!r}, 1), 'rows': 44}}, seed=3)\n"
        "print([(t.task_id, t.messages, t.reference) for t in map(e.task, range(len(e)))])\n"
    )
    outputs = printed_under_two_hash_seeds(script)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_a_template_reads_the_metadata():
    environment = load({"dataset": "chain_sum", "rows": 3, "prompt_template": "{expression}="})
    task = environment.task(0)
    assert first_question(environment) == task.metadata["expression"] + "="
    assert str(eval(task.metadata["expression"])) == task.reference.answer


def test_rewards_are_binary_unless_scores_are_asked_for(chain_sum):
    answer = chain_sum.task(0).reference.answer
    padded = f"the sum is {answer} I think"
    assert chain_sum.start(chain_sum.task(0)).reply(f" {answer}\n").reward == 1.0
    assert chain_sum.start(chain_sum.task(0)).reply(padded).reward == 0.0
    graded = load({"dataset": "chain_sum", "rows": 1, "reward": "score"})
    answer = graded.task(0).reference.answer
    padded = f"the sum is {answer} I think"
    partial = graded.start(graded.task(0)).reply(padded).reward
    assert partial == pytest.approx(len(answer) / len(padded))
    lenient = load({"dataset": "chain_sum", "rows": 1, "threshold": partial})
    assert lenient.start(lenient.task(0)).reply(padded).reward == 1.0
    strict = load({"dataset": "chain_sum", "rows": 1, "threshold": partial + 1e-3})
    assert strict.start(strict.task(0)).reply(padded).reward == 0.0


@pytest.mark.parametrize("blank", ["", " \n", "\t"])
def test_blank_text_is_wrong_without_asking_the_scorer(chain_sum, blank, monkeypatch):
    monkeypatch.setattr(library_scorer(chain_sum), "score_answer", lambda answer, entry: 1.0)
    assert chain_sum.start(chain_sum.task(0)).reply(blank).reward == 0.0


def test_the_scorer_reads_the_text_without_the_blanks_around_it(chain_sum, monkeypatch):
    read = []
    scorer = library_scorer(chain_sum)
    monkeypatch.setattr(scorer, "score_answer", lambda answer, entry: read.append(answer) or 0.0)
    chain_sum.start(chain_sum.task(0)).reply(" a b\n")
    assert read == ["a b"]


def test_a_scorer_that_raises_or_returns_no_number_gives_no_reward(chain_sum, monkeypatch):
    def broken(answer, entry):
        raise KeyError("in the scorer")

    scorer = library_scorer(chain_sum)
    monkeypatch.setattr(scorer, "score_answer", broken)
    with pytest.raises(VerifierFailure, match="KeyError"):
        chain_sum.start(chain_sum.task(0)).reply("1")
    for score in (float("nan"), None):
        monkeypatch.setattr(scorer, "score_answer", lambda answer, entry, score=score: score)
        with pytest.raises(VerifierFailure, match="finite"):
            chain_sum.start(chain_sum.task(0)).reply("1")


def test_a_blank_reference_answer_is_refused_with_its_row_number(monkeypatch):
    from reasoning_gym.arithmetic.chain_sum import ChainSumDataset

    original = ChainSumDataset.__getitem__

    def blank_fifth(self, index):
        return original(self, index) | ({"answer": ""} if index == 5 else {})

    monkeypatch.setattr(ChainSumDataset, "__getitem__", blank_fifth)
    with pytest.raises(DataError, match=r"row 5.*chain_sum.*blank"):
        load({"dataset": "chain_sum", "rows": 10, "dataset_options": {"min_terms": 5}})


def test_items_whose_own_answer_is_not_paid_are_left_out():
    # Some items of gsm_symbolic have reference answers that its scorer rejects.
    environment = load({"dataset": "gsm_symbolic", "rows": 120})
    assert validate_environment(environment, junk_items=0).ok


def test_resolved_options_resolve_to_themselves():
    resolved = resolve_options("reasoning_gym", {"dataset": "gcd"}, seed=3)
    assert resolved.seed == 3
    assert resolve_options("reasoning_gym", resolved.model_dump(exclude_none=True), seed=8) == resolved


@pytest.mark.parametrize("kind", sorted(JUNK))
def test_junk_is_wrong_and_not_a_failure(chain_sum, kind):
    assert chain_sum.start(chain_sum.task(0)).reply(JUNK[kind]).reward == 0.0
