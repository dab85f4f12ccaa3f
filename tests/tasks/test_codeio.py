"""CodeIO: which programs are asked about, what counts as right, and that hostile answers cost nothing."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.tasks.codeio import programs as programs_module
from lecritique.tasks.codeio.programs import Program, fault, programs_of
from lecritique.tasks.codeio.trials import Recording, record, returns, unfit
from lecritique.tasks.junk import HANGS, JUNK
from lecritique.tasks.registry import load_environment
from lecritique.tasks.sandbox import pool as pool_module
from lecritique.tasks.sandbox.isolation import SandboxUnavailable
from lecritique.tasks.validate import validate_environment

pytestmark = pytest.mark.skipif(
    os.environ.get("LECRITIQUE_SKIP_SANDBOX_TESTS") == "1", reason="LECRITIQUE_SKIP_SANDBOX_TESTS=1"
)

SQUARE = "def main_solution(x):\n    total = x * x\n    return {'square': total}"
DRAW = "def generate_inputs(rng):\n    return {'x': rng.randint(-1000, 1000)}"
# Many inputs share an output here; one hangs, one leaves with success, one prints nothing.
BRANCHES = (
    "import sys\n"
    "def main_solution(x):\n"
    "    if x == 5: sys.exit(0)\n"
    "    while x == 6: pass\n"
    "    if x == 7: return None\n"
    "    if x == 8: raise ValueError\n"
    "    return x % 2\n"
)


def program(code=SQUARE, generator=DRAW, row=0):
    return Program(row=row, description="Squares.", specification="x (int)", code=code, generator=generator)


def write_programs(path, *codes, generator=DRAW):
    lines = [
        json.dumps(
            {"task_description": "What?", "input_output_spec": "x", "code_sample": code, "input_generator": generator}
        )
        for code in codes
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def squares(tmp_path):
    return load_environment("codeio", {"programs": write_programs(tmp_path / "p.jsonl", SQUARE), "rows": 12})


def reward(environment, row, text):
    return environment.start(environment.task(row)).reply(text).reward


def rows_of(environment, direction):
    return [row for row in range(len(environment)) if environment.task(row).metadata["direction"] == direction]


def test_the_environment_keeps_its_promises(squares):
    report = validate_environment(squares, junk_items=4)
    assert report.ok, report.lines()
    assert report.slowest_seconds < squares.time_limit_seconds + 1
    assert rows_of(squares, "input") and rows_of(squares, "output")


def test_tasks_show_one_end_and_hide_the_other(squares):
    row = rows_of(squares, "output")[0]
    task = squares.task(row)
    x = json.loads(task.messages[0].content.split("JSON object:\n")[1].split("\n")[0])["x"]
    assert json.loads(task.reference.answer) == {"square": x * x}
    assert f"total = x * x    # total = {x * x}" in task.reference.solution
    assert f"main_solution(x={x}) returns" in task.reference.solution
    task = squares.task(rows_of(squares, "input")[0])
    answer = json.loads(task.reference.answer)
    assert json.dumps({"square": answer["x"] ** 2}) in task.messages[0].content
    assert f'{{"x": {answer["x"]}}}' not in task.messages[0].content


def test_any_input_that_yields_the_output_counts(squares):
    row = rows_of(squares, "input")[0]
    x = json.loads(squares.task(row).reference.answer)["x"]
    for right in (x, -x, float(x), float(-x)):
        assert reward(squares, row, f'so <answer>{{"x": {right}}}</answer>') == 1.0
    for wrong in (x + 1, "null", "true", f'"{x}"', "[1]", "1e400", "NaN", "9" * 3000):
        assert reward(squares, row, f'<answer>{{"x": {wrong}}}</answer>') == 0.0
    for keys in (f'{{"y": {x}}}', f'{{"x": {x}, "y": 1}}', f'{{"x": {x + 1}, "x": {x}}}', f"{x}", "{}"):
        assert reward(squares, row, keys) == 0.0


def test_outputs_are_compared_as_values(squares):
    row = rows_of(squares, "output")[0]
    square = json.loads(squares.task(row).reference.answer)["square"]
    for right in (
        f'{{"square": {square}}}',
        f'it is {{ "square" : {square}.0 }}',
        f'```json\n{{"square":{square}}}\n```',
    ):
        assert reward(squares, row, right) == 1.0
    for wrong in (f'{{"square": "{square}"}}', f"{square}", f'{{"square": {square + 1}}}', f"{{'square': {square}}}"):
        assert reward(squares, row, wrong) == 0.0


def test_fault_48_a_program_that_says_nothing_earns_nothing():
    def right(x):
        return returns(BRANCHES, {"x": x}, 0, seconds=1.0, tolerance=0.0, most_characters=1000)

    assert right(2) and right(4) and not right(3)
    assert not right(5)  # leaves with exit code 0, without a word
    assert not right(7)  # returns nothing
    assert not right(8)
    assert not returns("import os\nos._exit(0)", {}, 0, seconds=1.0, tolerance=0.0, most_characters=1000)
    assert not returns("", {}, None, seconds=1.0, tolerance=0.0, most_characters=1000)
    assert not right("x" * 2000)
    started = time.monotonic()
    assert not right(6)
    assert time.monotonic() - started < 2.0


def test_fault_48_without_a_sandbox_nothing_runs(tmp_path, monkeypatch):
    path = write_programs(tmp_path / "p.jsonl", SQUARE)
    frozen = tmp_path / "frozen.jsonl"
    environment = load_environment("codeio", {"programs": path, "rows": 4})
    freeze(environment, frozen)

    def none(process):
        raise SandboxUnavailable("there is none here")

    monkeypatch.setattr(pool_module, "_probe", none)
    pool_module._shared.cache_clear()
    with pytest.raises(ConfigurationError, match=r"no sandbox: there is none here.*lecritique\[sandbox\]"):
        load_environment("codeio", {"programs": path, "rows": 4})
    with pytest.raises(ConfigurationError, match="no sandbox"):
        load_environment("codeio", {"file": str(frozen), "direction": "input"})
    # Nothing of a model's runs to score an output.
    assert len(load_environment("codeio", {"file": str(frozen), "direction": "output"})) == 2
    pool_module._shared.cache_clear()


def freeze(environment, path):
    from lecritique.tasks.frozen import write_frozen

    return write_frozen(path, "codeio", type(environment).frozen(environment.options), {})


def test_frozen_items_are_the_items(squares, tmp_path):
    path = tmp_path / "frozen.jsonl"
    assert freeze(squares, path) == 12
    loaded = load_environment("codeio", {"file": str(path)})
    assert [loaded.task(row) for row in range(12)] == [squares.task(row) for row in range(12)]
    with pytest.raises(ConfigurationError, match=r"task.rows = 13.*gives 12 items"):
        load_environment("codeio", {"file": str(path), "rows": 13})


@pytest.mark.parametrize("text", [*JUNK.values(), *HANGS.values()], ids=[*JUNK, *HANGS])
def test_hostile_answers_are_wrong_and_quick(squares, text):
    started = time.monotonic()
    for row in (rows_of(squares, "output")[0], rows_of(squares, "input")[0]):
        assert reward(squares, row, text) == 0.0
    assert time.monotonic() - started < 2 * (squares.time_limit_seconds + 1)


def test_an_input_that_hangs_the_program_is_cut(tmp_path):
    code = "def main_solution(x):\n    while x > 2000: pass\n    return x // 2"
    path = write_programs(tmp_path / "p.jsonl", code)
    environment = load_environment("codeio", {"programs": path, "rows": 3, "direction": "input", "run_seconds": 0.5})
    for row in range(3):
        started = time.monotonic()
        assert reward(environment, row, '{"x": 5000}') == 0.0
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\n" + SQUARE, "imports os"),
        ("from subprocess import run\n" + SQUARE, "imports subprocess"),
        ("def main_solution(x):\n    return open(x).read()", "uses open"),
        ("def main_solution(x):\n    return eval(x)", "uses eval"),
        ("def main_solution(x):\n    return x.__class__.__subclasses__()", "__subclasses__"),
        ("import datetime\ndef main_solution(x):\n    return datetime.datetime.now()", "now"),
        ("def main_solution(x):\n    return input()", "uses input"),
        ("def f(x):\n    return x", "does not define main_solution"),
        ("def main_solution(x:\n", "no Python"),
    ],
)
def test_the_static_filter(code, words):
    assert words in fault(program(code))
    assert unfit(program(code)) == fault(program(code))
    assert fault(program()) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import random\ndef main_solution(x):\n    return random.random()", "different values"),
        ("def main_solution(x):\n    return list({str(x), 'a', 'b', 'c'})", "depend on the process"),
        ("def main_solution(x):\n    return (x, x)", "changes under JSON"),
        ("def main_solution(x):\n    return {x: 1}", "changes under JSON"),
        ("def main_solution(x):\n    return float('nan')", "ValueError"),
        ("def main_solution(x):\n    return None", "returns nothing"),
        ("def main_solution(x):\n    return 3", "always returns the same"),
        ("def main_solution(x):\n    raise KeyError(x)", "KeyError"),
        ("def main_solution(x):\n    return object()", "TypeError"),
        (
            "def main_solution(x):\n    total = 0\n    for i in range(3 * 10**7): total += i\n    return total + x",
            "a run takes more|timeout",
        ),
    ],
)
def test_the_filter_that_runs_programs(code, words):
    found = unfit(program(code))
    assert re.search(words, found)
    assert unfit(program()) == ""


def test_a_recording_is_fixed_by_its_seed():
    first, second, other = (record(program(), seed) for seed in (3, 3, 4))
    assert isinstance(first, Recording)
    assert (first.inputs, first.output, first.trace) == (second.inputs, second.output, second.trace)
    assert first.inputs != other.inputs


def test_a_file_of_programs_is_checked_line_by_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"task_description": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1 .*lacks the text fields input_output_spec, code_sample"):
        programs_of(str(path))
    path.write_text("[1]\n{", encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        programs_of(str(path))
    with pytest.raises(DataError, match="cannot be read"):
        programs_of(str(tmp_path / "none.jsonl"))
    path = write_programs(path, "import os\n" + SQUARE)
    with pytest.raises(ConfigurationError, match="gives 0 items"):
        load_environment("codeio", {"programs": path})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "a", "programs": "b"}, "at most one of task.file and task.programs"),
        ({"output_template": "{code}"}, "lacks the field"),
        ({"input_template": "{given} {other}"}, "task.input_template is no template"),
        ({"direction": "sideways"}, "task.direction"),
        ({"max_value_chars": 20_000}, "task.max_value_chars"),
        ({"tolerance": 1.0}, "task.tolerance"),
        ({"file": "/no/such/file"}, "cannot be read"),
    ],
)
def test_options_that_cannot_be_run_are_named(options, words):
    with pytest.raises((ConfigurationError, DataError), match=words):
        load_environment("codeio", options)


def test_values_that_are_too_long_are_left_out(tmp_path):
    code = "def main_solution(x):\n    return 'y' * (abs(x) + 1)"
    draw = "def generate_inputs(rng):\n    return {'x': rng.choice([rng.randint(0, 200), 900])}"
    path = write_programs(tmp_path / "p.jsonl", code, generator=draw)
    environment = load_environment("codeio", {"programs": path, "rows": 3, "max_value_chars": 300})
    assert all(len(environment.task(row).reference.answer) <= 300 for row in range(3))


# The bundled programs.


def test_the_frozen_index_names_bundled_programs():
    pytest.importorskip("reasoning_gym")
    accepted = programs_module.bundled_programs()
    assert len(accepted) >= 2000
    assert len({program.digest for program in accepted}) >= 2000
    assert all(fault(program) == "" for program in accepted[::50])


def test_an_index_of_other_programs_is_refused(monkeypatch):
    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr(programs_module, "all_bundled_programs", lambda: (program(),))
    with pytest.raises(DataError, match="not those that were filtered"):
        programs_module.bundled_programs()


def test_the_bundled_programs_make_items():
    pytest.importorskip("reasoning_gym")
    environment = load_environment("codeio", {"rows": 20})
    report = validate_environment(environment, junk_items=2, hang_items=1)
    assert report.ok, report.lines()
    assert len({environment.task(row).task_id for row in range(20)}) == 20


@pytest.mark.slow
def test_gold_predictions_of_two_thousand_programs_are_right():
    pytest.importorskip("reasoning_gym")
    limits = {"max_program_chars": 100_000, "max_value_chars": 10_000}
    started = time.monotonic()
    environment = load_environment("codeio", {"rows": 2000, **limits})
    made = time.monotonic() - started
    wrong = []
    for row in range(2000):
        task = environment.task(row)
        text = environment.gold(task, task.messages)
        item = environment._items[row]
        ran = returns(item.code, item.inputs, item.output, seconds=5.0, tolerance=0.0, most_characters=10**6)
        if reward(environment, row, text) != 1.0 or not ran:
            wrong.append(row)
    seconds = time.monotonic() - started - made
    print(f"2000 items made in {made:.0f} s; 2000 executions in {seconds:.0f} s, {2000 / seconds:.0f} a second")
    assert wrong == []
    # A few programs share their code and differ in how inputs are drawn.
    assert len({environment._items[row].code for row in range(2000)}) >= 1990
