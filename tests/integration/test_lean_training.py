"""The Lean task in a run: two steps on the real compiler with the proof in front of the critic."""

import json

from lecritique.config.load import compose, load_recipe
from lecritique.runtime.build import build, load_base
from tests.integration.short_runs import recipe_file, trained
from tests.tasks.lean_tools import lean_options, require_lean

RECIPE = """
preset = "pvf"
[run]
steps = 2
[task]
type = "lean"
{options}
[sampling]
max_turn_tokens = 4
[rollout]
batch_size = 4
group_size = 2
[critic]
warmup_updates = 0
context = {{ type = "reference" }}
[runtime]
loop = "synchronous"
[critic.replay]
refill_size = 4
"""


def as_toml(options):
    """Options in TOML: JSON is TOML for all but tables."""
    if isinstance(options, dict):
        return "{" + ", ".join(f"{key} = {as_toml(value)}" for key, value in options.items()) + "}"
    return json.dumps(options)


def test_two_steps_with_the_proof_as_context(tmp_path):
    require_lean()
    options = lean_options(rows=4, attempts=2)
    text = RECIPE.format(options="\n".join(f"{key} = {as_toml(value)}" for key, value in options.items()))
    parts = build(load_base(compose(load_recipe(str(recipe_file(tmp_path, text))), arm=None, overrides=[])))
    steps = trained(parts)
    parts.environment.close()
    assert [(step["rollouts_failed"], step["turns"]) for step in steps] == [(0.0, 2.0)] * 2
