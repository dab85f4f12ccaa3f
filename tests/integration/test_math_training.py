"""The math task in a run: two steps with the worked solution in front of the critic."""

import json

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import recipe_file, trained

RECIPE = """
preset = "pvf"
[run]
steps = 2
[task]
type = "math"
file = "sums.jsonl"
solution_columns = ["solution"]
prompt_template = "{question}"
require_box = false
[sampling]
max_turn_tokens = 6
[rollout]
batch_size = 8
group_size = 4
[critic]
warmup_updates = 0
context = { type = "reference", content = "both" }
[runtime]
loop = "synchronous"
[critic.replay]
refill_size = 8
"""


def test_two_steps_with_the_worked_solution_as_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"1+{n}=", "final_answer": 1 + n, "solution": f"1+{n}={1 + n}"} for n in range(8)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = build(load_base(compose(load_recipe(str(recipe_file(tmp_path, RECIPE))), arm=None, overrides=[])))
    steps = trained(parts)
    parts.environment.close()
    assert [(step["rollouts"], step["rollouts_failed"]) for step in steps] == [(8.0, 0.0)] * 2
