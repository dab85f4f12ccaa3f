"""Environments by name, among them a user's own in one file, and what is said when that goes wrong."""

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pydantic import BaseModel

import lecritique.tasks
from lecritique.core.errors import ConfigurationError
from lecritique.tasks.registry import load_environment, options_model, resolve_options, task_names
from lecritique.tasks.validate import validate_environment

USER_TASK = '''
from pydantic import BaseModel
from lecritique.core.task import Message, Reference, Task
from lecritique.tasks.protocol import SingleTurn


class Doubling:
    """Double a number."""

    class Options(BaseModel):
        rows: int = 10
        factor: int = 2
        seed: int | None = None

    name = "doubling"
    reward_range = (0.0, 1.0)

    def __init__(self, options):
        self.options = options

    def __len__(self):
        return self.options.rows

    def task(self, row):
        answer = str(self.options.factor * (row + 1000))
        message = Message(role="user", content=f"{self.options.factor} times {row + 1000}?")
        return Task(task_id=str(row), messages=(message,), reference=Reference(answer=answer))

    def start(self, task):
        return SingleTurn(lambda text: float(text.strip() == task.reference.answer))

    def gold(self, task, messages):
        return task.reference.answer


class Halved:
    class Options(BaseModel):
        pass

    def __init__(self, options):
        pass


class Bare:
    pass
'''


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "doubling_task.py").write_text(textwrap.dedent(USER_TASK))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "doubling_task"
    sys.modules.pop("doubling_task", None)


def test_a_task_of_the_users_own_in_the_working_directory(user_module):
    environment = load_environment(f"{user_module}:Doubling", {"rows": 30, "factor": 3}, seed=4)
    assert len(environment) == 30
    assert environment.options.seed == 4
    assert environment.gold(environment.task(1), ()) == "3003"
    assert validate_environment(environment).ok
    assert set(options_model(f"{user_module}:Doubling").model_fields) == {"rows", "factor", "seed"}


def test_a_seed_among_the_options_goes_before_the_runs_seed(user_module):
    assert load_environment(f"{user_module}:Doubling", {"seed": 7}, seed=4).options.seed == 7
    assert resolve_options("sudoku", {"seed": 7}, seed=4).seed == 7
    assert resolve_options("sudoku", {}, seed=4).seed == 4


def test_resolved_options_hold_no_none_and_resolve_to_themselves():
    resolved = resolve_options("sudoku", {}, seed=3)
    assert None not in resolved.model_dump().values()
    assert resolve_options("sudoku", resolved.model_dump(), seed=9) == resolved


@pytest.mark.parametrize(
    ("type_name", "options", "words"),
    [
        ("sodoku", {}, "'sodoku'.*reasoning_gym, sudoku, verifiers or module:Class.*did you mean 'sudoku'"),
        ("reasoning-gym", {}, "did you mean 'reasoning_gym'"),
        ("sudoku", {"siez": 4}, "task.siez.*did you mean 'size'"),
        ("sudoku", {"size": "4"}, "task.size.*got '4'"),
        ("no_such_module_anywhere:Class", {}, "importing 'no_such_module_anywhere' failed"),
        ("doubling_task:Dubling", {}, "no class 'Dubling'.*did you mean 'Doubling'"),
        ("doubling_task:Bare", {}, "Options"),
        ("doubling_task:Halved", {}, "lacks name, reward_range, __len__"),
        ("doubling_task:Doubling", {"rwos": 3}, "task.rwos.*did you mean 'rows'"),
        ("doubling_task:Doubling", {"rows": "many"}, "task.rows.*got 'many'.*integer"),
        ("doubling_task:Doubling", {"rows": 0}, "no rows"),
        (":", {}, "unknown task.type"),
    ],
)
def test_what_cannot_be_loaded_is_named_in_one_sentence(user_module, type_name, options, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_environment(type_name, options)
    assert "\n" not in str(caught.value)


def test_a_user_module_that_raises_while_imported_is_named(user_module, tmp_path):
    (tmp_path / "broken_task.py").write_text("raise KeyError('x')\n")
    with pytest.raises(ConfigurationError, match=r"broken_task.*KeyError"):
        load_environment("broken_task:Any", {})


def test_every_option_has_its_docstring_and_is_read_somewhere():
    package = Path(lecritique.tasks.__file__).parent
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    for name in task_names():
        for field, info in options_model(name).model_fields.items():
            assert info.description, f"{name}.{field}"
            assert re.search(rf"(self|options)\.{field}\b", source), f"{name}.{field} is never read"


def test_the_registry_loads_neither_torch_nor_reasoning_gym_and_sudoku_runs_without_them():
    script = (
        "import sys\n"
        "for absent in ('reasoning_gym', 'torch', 'ray', 'vllm', 'transformers'): sys.modules[absent] = None\n"
        "from lecritique.tasks.registry import load_environment\n"
        "from lecritique.tasks.validate import validate_environment\n"
        "assert validate_environment(load_environment('sudoku', {'rows': 5})).ok\n"
        "try:\n"
        "    load_environment('reasoning_gym', {'dataset': 'chain_sum'})\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ConfigurationError")
    assert "pip install 'lecritique[reasoning-gym]'" in done.stdout


@pytest.mark.parametrize("reward_range", [(1.0, 0.0), (0.0, float("nan")), (0.0, float("inf")), "01", (1.0,), None])
def test_a_reward_range_that_is_none_is_refused(user_module, monkeypatch, reward_range):
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(importlib.import_module(user_module).Doubling, "reward_range", reward_range)
    with pytest.raises(ConfigurationError, match=r"reward_range = .*expected \(lowest, highest\)"):
        load_environment(f"{user_module}:Doubling", {})


@pytest.mark.parametrize("member", ["__init__", "__len__"])
def test_a_class_that_raises_is_one_sentence(user_module, monkeypatch, member):
    def broken(*_):
        raise RuntimeError("boom")

    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(importlib.import_module(user_module).Doubling, member, broken)
    with pytest.raises(ConfigurationError, match=r"failed with RuntimeError: boom"):
        load_environment(f"{user_module}:Doubling", {})


def test_an_option_named_type_is_refused(user_module, monkeypatch):
    class Options(BaseModel):
        type: str = "mine"

    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(importlib.import_module(user_module).Doubling, "Options", Options)
    with pytest.raises(ConfigurationError, match="named 'type', rename it"):
        load_environment(f"{user_module}:Doubling", {})
