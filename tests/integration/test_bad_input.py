"""Whatever is asked wrongly: exit code 2, one sentence on stderr, nothing written, nothing overwritten."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.integration.command_line import SHORT, call, finish, require_one_sentence, start

OWN_TASK = """
from pydantic import BaseModel


class Incomplete:
    class Options(BaseModel):
        pass

    def __init__(self, options):
        pass


NOT_A_CLASS = 3
"""


@pytest.fixture
def ask(capfd, monkeypatch, tmp_path):
    """Call in an empty folder that must stay as it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_task.py").write_text(OWN_TASK)
    (tmp_path / "crashing_task.py").write_text("raise RuntimeError('two\\nlines')")
    (tmp_path / "broken.toml").write_text("[run\n")
    (tmp_path / "typo.toml").write_text('[task]\ntype = "sudoku"\n[rn]\nsteps = 3\n')
    (tmp_path / "no_task.toml").write_text("[run]\nsteps = 3\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def files():
        return {str(path): path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}

    def asked(*arguments):
        before = files()
        answer = call(capfd, monkeypatch, *arguments)
        assert files() == before
        return answer

    return asked


WRONG = {
    "no such recipe": (("train", "dmo"), "no recipe 'dmo'", "Did you mean 'demo'?"),
    "no such recipe file": (("train", "nowhere.toml"), "'nowhere.toml'", "no such file"),
    "a folder as a recipe": (("train", "empty"), "'empty'"),
    "not TOML": (("train", "broken.toml"), "not valid TOML", "line 1"),
    "a wrong section in a recipe": (("train", "typo.toml"), "'rn'", "Did you mean 'run'?"),
    "a recipe without a task": (("train", "no_task.toml"), "'task'", "field required"),
    "gae_lamda": (
        ("train", "demo", "estimator.gae_lamda=1"),
        "'estimator.gae_lamda'", "section 'estimator'", "'gae_lambda'?",
    ),
    "a wrong section": (("train", "demo", "critic.gae_lambda=1"), "'critic.gae_lambda'", "'estimator.gae_lambda'?"),
    "a hyphen": (("train", "demo", "estimator.gae-lambda=1"), "'estimator.gae-lambda'", "'estimator.gae_lambda'?"),
    "no equals sign": (("train", "demo", "rollout.batch_size"), "expected key.path=value"),
    "a wrong value": (("train", "demo", "run.steps=0"), "'run.steps'", "got 0"),
    "no such arm": (("train", "demo", "--arm", "thether"), "'thether'", "Did you mean 'tether'?"),
    "no such task": (("train", "demo", "task.type=sudku"), "'sudku'", "did you mean 'sudoku'?"),
    "no such task module": (("train", "demo", "task.type=nowhere:Task"), "nowhere"),
    "no such task class": (("train", "demo", "task.type=own_task:Incomplet"), "did you mean 'Incomplete'?"),
    "not a task class": (("train", "demo", "task.type=own_task:NOT_A_CLASS"), "NOT_A_CLASS"),
    "a task that lacks methods": (("train", "demo", "task.type=own_task:Incomplete"), "lacks"),
    "a task that fails to import": (("train", "demo", "task.type=crashing_task:X"), "RuntimeError", "two lines"),
    "no such task option": (("train", "demo", "task.siez=4"), "task.siez", "did you mean 'size'?"),
    "a wrong task option": (("train", "demo", "task.size=5"), "task.size", "got 5"),
    "no such data set": (("train", "demo", "task.type=reasoning_gym", "task.dataset=chain_sums"), "chain_sum"),
    "no such model": (("train", "demo", "model.name=tinny"), "'tinny'", "'tiny'"),
    "no such model folder": (("train", "demo", "model.name=./nowhere"), "./nowhere", "does not exist"),
    "an empty model folder": (("train", "demo", "model.name=empty"), "config.json is missing"),
    "a group of one": (
        ("train", "demo", "--arm", "tether", "rollout.group_size=1"),
        "'estimator.type'", "'rollout.group_size'",
    ),
    "a batch that is no whole groups": (("train", "demo", "rollout.batch_size=10"), "got 10 and 4"),
    "too long for the model": (("train", "demo", "sampling.max_total_tokens=100000"), "'sampling.max_total_tokens'"),
    "two arms": (("train", "demo", "preset=mean", "--arm", "pvf"), "'pvf'", "'mean'"),
    "no recipe": (("train",), "RECIPE"),
    "no such option": (("train", "demo", "--steps", "3"), "--steps"),
    "no such command": (("trian",), "trian"),
    "compare: no such arm": (("compare", "demo", "--arms", "mean,thether"), "'thether'", "Did you mean 'tether'?"),
    "compare: an arm twice": (("compare", "demo", "--arms", "mean,mean"), "--arms", "twice"),
    "compare: no arms": (("compare", "demo", "--arms", ","), "--arms"),
    "compare: a wrong seed": (("compare", "demo", "--seeds", "0,x"), "--seeds", "'0,x'"),
    "compare: a seed twice": (("compare", "demo", "--seeds", "1,01"), "--seeds", "twice"),
    "compare: no jobs": (("compare", "demo", "--jobs", "0"), "--jobs"),
    "compare: a seed as an override": (("compare", "demo", "run.seed = 3"), "--seeds"),
    "compare: a preset as an override": (("compare", "demo", "preset =mean"), "--arms"),
    "compare: a file as --out": (("compare", "demo", "--out", "own_task.py"), "own_task.py"),
    "compare: somebody's folder": (("compare", "demo", "--out", "."), "no comparison"),
    "compare: an arm that cannot run": (
        ("compare", "demo", "--arms", "value,mean", "rollout.group_size=1", "critic.warmup=discard", "run.steps=90"),
        "'rollout.group_size'",
    ),
    "report: no such folder": (("report", "nowhere"), "'nowhere'"),
    "report: nothing there": (("report", "empty"), "neither compare.json"),
    "tasks: no such task": (("tasks", "show", "sudku"), "did you mean 'sudoku'?"),
    "tasks: no such row": (("tasks", "show", "sudoku", "rows=3", "--row", "3"), "0 to 2"),
    "tasks: no such option": (("tasks", "validate", "sudoku", "siez=4"), "task.siez"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_one_sentence_and_nothing_written(ask, case):
    arguments, *words = WRONG[case]
    require_one_sentence(ask(*arguments), *words)


def test_a_prompt_over_the_limit_ends_the_run_with_exit_code_2(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    answer = call(capfd, monkeypatch, "train", "demo", *SHORT, "sampling.max_total_tokens=4", "--out", "new")
    require_one_sentence(answer, "row 0", "has 20 tokens with its template", "'data.max_prompt_tokens' = 3")
    assert not (tmp_path / "new").exists()


def test_a_page_that_cannot_be_written_is_one_sentence(capfd, monkeypatch, tmp_path):
    (tmp_path / "compare.json").write_text('{"schema": 1, "recipe": "demo", "arms": ["mean"], "seeds": [0]}')
    answer = call(capfd, monkeypatch, "report", str(tmp_path), "--out", str(tmp_path))
    require_one_sentence(answer, str(tmp_path), "cannot be written")


def test_another_runs_directory_is_left_alone(ask, tmp_path):
    held = tmp_path / "held"
    held.mkdir()
    (held / "metrics.jsonl").write_text("precious\n")
    require_one_sentence(ask("train", "demo", *SHORT, "--out", "held"), "'held'", "already holds files")


def test_a_missing_extra_is_named_before_anything_is_written(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    answer = ask("train", "demo", *SHORT, "run.sinks=['tensorboard']", "--out", "new")
    require_one_sentence(answer, "lecritique[tensorboard]")


def test_a_missing_engine_is_named_before_anything_is_written(ask, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    answer = ask("train", "demo", *SHORT, "runtime.engine.type=vllm", "--out", "new")
    require_one_sentence(answer, "'runtime.engine.type' = 'vllm'", "lecritique[vllm]")


def test_a_process_of_its_own_says_the_same(tmp_path):
    answer = finish(start("train", "demo", "estimator.gae_lamda=1", "--out", "new", cwd=tmp_path))
    require_one_sentence(answer, "'estimator.gae_lamda'")
    assert answer.out == "" and list(tmp_path.iterdir()) == []
