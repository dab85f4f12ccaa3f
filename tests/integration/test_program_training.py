"""CodeIO and tagged Reasoning Gym in runs: two steps with what the critic alone may see."""

import json
import os

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import recipe_file, trained

# The bundled model knows digits and a few signs; prompts are no longer than its positions.
RECIPE = """
preset = "pvf"
[run]
steps = 2
[task]
%s
[sampling]
max_turn_tokens = 6
[rollout]
batch_size = 8
group_size = 4
[critic]
warmup_updates = 0
context = { type = "reference", content = "%s" }
[runtime]
loop = "synchronous"
[critic.replay]
refill_size = 8
"""
CODEIO = """
type = "codeio"
programs = "programs.jsonl"
rows = 8
max_value_chars = 40
output_template = "{given}="
input_template = "={given}"
"""
GYM = """
type = "reasoning_gym"
dataset = "chain_sum"
rows = 8
answer = "tags"
prompt_template = "{expression}="
curriculum = { num_terms = 0, num_digits = 0 }
"""


@pytest.mark.skipif(os.environ.get("LECRITIQUE_SKIP_SANDBOX_TESTS") == "1", reason="LECRITIQUE_SKIP_SANDBOX_TESTS=1")
def test_two_steps_of_codeio_with_answer_and_trace_as_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = {
        "task_description": "Doubles.",
        "input_output_spec": "x: int",
        "code_sample": "def main_solution(x):\n    return 2 * x",
        "input_generator": "def generate_inputs(rng):\n    return {'x': rng.randint(0, 99)}",
    }
    (tmp_path / "programs.jsonl").write_text(json.dumps(program))
    config = compose(load_recipe(str(recipe_file(tmp_path, RECIPE % (CODEIO, "both")))), arm=None, overrides=[])
    parts = build(load_base(config))
    assert all("returns" in parts.environment.task(row).reference.solution for row in range(8))
    steps = trained(parts)
    assert len(steps) == 2 and all(step.get("rollouts_failed", 0) == 0 for step in steps)


def test_two_steps_of_reasoning_gym_with_tags(tmp_path):
    pytest.importorskip("reasoning_gym")
    config = compose(load_recipe(str(recipe_file(tmp_path, RECIPE % (GYM, "answer")))), arm=None, overrides=[])
    steps = trained(build(load_base(config)))
    assert len(steps) == 2 and all(step.get("rollouts_failed", 0) == 0 for step in steps)
