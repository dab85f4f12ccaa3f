"""The recipes' actors are the papers' nodes: what Ray is asked for is what the planner counts."""

import pytest

from lecritique.actors.seats import cluster_settings, seats_of
from lecritique.config.load import load_recipe
from lecritique.planning.placement import placement_of
from tests.unit.planning.test_memory import config_of

PLANNED = {"engine": "inference", "evaluator": "evaluator", "policy trainer": "policy trainer"}


@pytest.mark.parametrize("arm", ["mean", "value", "tether"])
@pytest.mark.parametrize("recipe", ["reasoning-gym", "codeio", "sudoku-hard", "minif2f"])
def test_actors_ask_for_the_gpus_of_the_papers_nodes(recipe, arm):
    config = config_of(recipe, arm, "runtime.type=ray", "runtime.address=auto")
    asked: dict[str, float] = {}
    for seat in seats_of(config):
        asked[seat.role] = asked.get(seat.role, 0) + seat.gpus
    placed = placement_of(config, load_recipe(recipe).cluster)
    assert {PLANNED.get(role, role): gpus for role, gpus in asked.items()} == placed.gpus
    assert config.runtime.device == "cuda" and cluster_settings(config).gpus == placed.total


@pytest.mark.parametrize("arm", ["mean", "tether"])
def test_with_vllm_too(arm):
    config = config_of("codeio", arm, "runtime.type=ray", "runtime.engine.type=vllm")
    assert sum(seat.role == "engine" for seat in seats_of(config)) == 16
