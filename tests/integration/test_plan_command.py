"""`lecritique plan`: what it prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from lecritique.cli import output
from lecritique.planning.cpu import CpuConstants, PassCost
from tests.integration.command_line import Answer, call, require_one_sentence


@pytest.fixture
def plan(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "console", Console(width=140, highlight=False, markup=False, emoji=False))

    def command(*arguments: str) -> Answer:
        answer = call(capfd, monkeypatch, "plan", *arguments)
        assert list(tmp_path.iterdir()) == []
        return answer

    return command


def rows_of(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def test_both_placements_and_several_group_sizes(plan):
    answer = plan("reasoning-gym", "--steps", "30")
    assert answer.code == 0 and answer.err == ""
    rows = rows_of(answer.out)
    assert [row[:2] for row in rows] == [[name, k] for name in ("dedicated", "colocated") for k in ("4", "8", "16")]
    for row in rows:
        step, tokens, idle = float(row[2]), float(row[3].replace(",", "")), row[6:]
        # 128 rollouts of 1,500 tokens a step, as long as they are not cut.
        assert step > 0 and tokens * step == pytest.approx(128 * 1500, rel=0.1)
        assert re.fullmatch(r"\d+\.\d\d / \d+", row[4]) and all(re.fullmatch(r"\d+%|-", cell) for cell in idle)
        assert (idle[3] == "-") == (row[0] == "colocated")
    assert "4 nodes, 32 GPUs" in answer.out and "Assumed: prompts of 300 tokens, responses of 1500" in answer.out


def test_a_synchronous_recipe_is_compared_with_what_its_paper_printed(plan):
    answer = plan("deepmath")
    rows = {row[0]: row[1:] for row in rows_of(answer.out)}
    assert answer.code == 0 and rows["step"][1] == "412.3" and rows["reward"][0] == "-"
    planned = {phase: float(cells[0]) for phase, cells in rows.items() if cells[0] != "-"}
    assert sum(seconds for phase, seconds in planned.items() if phase != "step") == pytest.approx(
        planned["step"], abs=1
    )
    assert float(rows["step"][2]) == pytest.approx(planned["step"] / 412.28, abs=0.006)
    own = plan("knights")  # nothing is published for it
    assert own.code == 0 and "ratio" not in own.out
    # A sentence of its own, not wrapped into the narrow table's width.
    assert re.search(r"^[\d,]+ tok/s; .* waiting for the longest\.$", own.out, re.MULTILINE)


def test_it_says_when_the_model_would_not_run(plan):
    answer = plan("minif2f", "--steps", "25", "--group-sizes", "4")
    assert (
        answer.code == 0
        and "Model: it has layers of linear_attention, which this version refuses to run." in answer.out
    )
    assert "refuses" not in plan("codeio", "--steps", "25", "--group-sizes", "4").out


def test_other_gpus_and_other_assumptions(plan):
    answer = plan(
        "codeio", "--gpus", "8xH100", "--group-sizes", "4", "--steps", "25", "--assume", "response_tokens=1000"
    )
    assert answer.code == 0 and "inference 3, policy trainer 2, value trainer 2, evaluator 1; 8 H100." in answer.out
    assert "responses of 1000" in answer.out and [row[1] for row in rows_of(answer.out)] == ["4", "4"]
    slow = plan("deepmath", "--assume", "train=0.1", "--assume", "published_seconds={actor=10.0}")
    rows = {row[0]: row[1:] for row in rows_of(slow.out)}
    assert float(rows["actor"][2]) == pytest.approx(float(rows["actor"][0]) / 10, abs=0.01)


def test_it_says_when_the_critic_cannot_keep_up(plan):
    answer = plan("codeio", "--group-sizes", "8")
    assert answer.code == 0 and "note: K 8, dedicated: the value trainer is never idle" in answer.out
    assert "never idle" not in plan("reasoning-gym", "--steps", "25", "--group-sizes", "8").out


def test_without_a_critic_there_is_nothing_to_place(plan):
    answer = plan("reasoning-gym", "--arm", "mean", "--steps", "25", "--group-sizes", "1,8,3")
    assert answer.code == 0
    ((name, size, *_, value, evaluator),) = rows_of(answer.out)
    assert (name, size, value, evaluator) == ("none", "8", "-", "-")
    assert "note: K 1, dedicated: 'estimator.type' = 'mean'" in answer.out
    assert "note: K 3, dedicated: 'rollout.batch_size'" in answer.out


def test_a_recipe_without_a_cluster_has_a_node_for_each_role(plan):
    answer = plan("demo", "runtime.loop=asynchronous", "--steps", "25", "--group-sizes", "4")
    assert answer.code == 0 and "4 nodes, 32 GPUs" in answer.out


@pytest.mark.parametrize("columns", [60, 80])
def test_nothing_is_cut_on_a_narrow_terminal(plan, monkeypatch, columns):
    # The console of the command has taken its width when it was first imported.
    monkeypatch.setattr(output, "console", Console(width=columns, highlight=False, markup=False, emoji=False))
    answer = plan("reasoning-gym", "--steps", "25", "--group-sizes", "8")
    wide = plan("reasoning-gym", "--steps", "25", "--group-sizes", "8", "--json")
    assert answer.code == 0 and "…" not in answer.out
    for run in json.loads(wide.out)["asynchronous"]:
        for cell in (run["evaluator"], f"{run['step_seconds']:.1f}", f"{run['tokens_per_second']:,.0f}"):
            assert cell in answer.out
    table = answer.out[answer.out.index("publish_bandwidth") :].split("\n")[1:]
    assert all(len(line) <= columns for line in table[: next(i for i, line in enumerate(table) if "step:" in line)])
    assert "…" not in plan("deepmath").out


def test_a_plan_for_other_programs_is_one_json_object(plan):
    found = json.loads(plan("reasoning-gym", "--steps", "25", "--group-sizes", "4,8", "--json").out)
    assert found["gpus"] == {
        "total": 32, "shared": False, "inference": 8, "policy trainer": 8, "value trainer": 8, "evaluator": 8,
    }  # fmt: skip
    assert [(run["evaluator"], run["group_size"]) for run in found["asynchronous"]] == [
        ("dedicated", 4), ("colocated", 4), ("dedicated", 8), ("colocated", 8),
    ]  # fmt: skip
    assert all(role["fits"] for role in found["memory_of_one_gpu"]) and found["assumed"]["response_tokens"] == 1500
    deepmath = json.loads(plan("deepmath", "--json").out)["synchronous"]
    assert deepmath["step_seconds"] == pytest.approx(sum(deepmath["seconds"].values()))


def test_this_machine_is_measured_and_planned(plan, monkeypatch):
    """With constants that are made up: arithmetic takes time, and nothing else."""
    nothing = PassCost(call=0.0, layer=0.0, number=0.0)
    made_up = CpuConstants(
        flops=1e9, forward=nothing, train=nothing, decode=nothing, row=0.0, cached=0.0, parameter=0.0, rollout=0.0
    )
    monkeypatch.setattr("lecritique.runtime.measuring.measured_constants", lambda: made_up)
    told = ("--assume", "prompt_tokens=20", "--assume", "response_tokens=16", "--assume", "spread=0")
    found = json.loads(plan("demo", "--measure", "--json", *told).out)
    assert found["step_cpu_seconds"] == pytest.approx(sum(found["cpu_seconds"].values()))
    assert found["constants"]["flops"] == 1e9 and found["cpu_seconds"]["critic"] > found["cpu_seconds"]["values"] > 0
    answer = plan("demo", "--measure", *told)
    rows = {row[0]: float(row[1]) for row in rows_of(answer.out)}
    assert rows["step"] == pytest.approx(found["step_cpu_seconds"], abs=1e-3)
    assert "Measured, one thread: flops 1e+09, forward (call 0, layer 0, number 0)" in answer.out
    # Without an assumption prompts are those of the recipe: 16 cells, and the template around them.
    assert "prompts of 20 tokens" in plan("demo", "--measure", "task.rows=100").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--measure", "--gpus", "8xH200"), ("--measure", "--gpus")),
        (("demo", "--measure", "--assume", "prompt_tokens=5000"), ("'cluster.prompt_tokens' = 5000",)),
        (("reasoning-gym", "--measure"), ("'runtime.dtype' = 'bfloat16'", "float32")),
        (("reasoning-gym", "--gpus", "8"), ("--gpus", "8xH200")),
        (("reasoning-gym", "--gpus", "8xT4"), ("'T4'", "H100")),
        (("reasoning-gym", "--gpus", "3xH200"), ("3 GPUs", "4 roles")),
        (("reasoning-gym", "--assume", "trian=0.4"), ("trian", "'train'")),
        (("reasoning-gym", "--assume", "train=0"), ("train", "above 0")),
        (("reasoning-gym", "--assume", "train=inf"), ("train", "above 0")),
        (("reasoning-gym", "--assume", "train=fast"), ("train", "'fast'")),
        (("reasoning-gym", "--assume", "response_tokens=0"), ("'cluster.response_tokens'", "got 0")),
        (("reasoning-gym", "--assume", "response_tokens"), ("key.path=value",)),
        (("reasoning-gym", "--group-sizes", "4,x"), ("--group-sizes", "'4,x'")),
        (("reasoning-gym", "--group-sizes", "0"), ("--group-sizes",)),
        (("reasoning-gym", "model.name=nobody/nothing"), ("'nobody/nothing'",)),
        (("deepmath", "--gpus", "1xA100"), ("needs", "A100")),
        (("no-such-recipe",), ("no-such-recipe",)),
    ],
)
def test_bad_input_is_one_sentence(plan, arguments, said):
    require_one_sentence(plan(*arguments), *said)


def test_a_recipes_cluster_is_checked(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "own.toml"
    for table, said in (("gpus = 3", "'cluster.gpus'"), ("trainer_nodes = 0", "'cluster.trainer_nodes'")):
        path.write_text(f'preset = "mean"\n[task]\ntype = "sudoku"\n[cluster]\n{table}\n')
        require_one_sentence(plan(str(path)), said)
    path.write_text('cluster = 3\n[task]\ntype = "sudoku"\n')
    require_one_sentence(plan(str(path)), "'cluster' must be a table, got 3")
