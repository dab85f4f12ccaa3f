"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lecritique.config.load import compose, load_recipe, recipe_names
from lecritique.config.presets import PRESETS
from lecritique.tasks.registry import load_environment
from lecritique.tasks.validate import validate_environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_an_own_task_keeps_an_environments_promises(tmp_path, monkeypatch):
    code = re.search(r"```python\n(# coins\.py\n.*?)```", README, re.DOTALL)
    assert code is not None
    (tmp_path / "coins.py").write_text(code.group(1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "coins", raising=False)
    report = validate_environment(load_environment("coins:Coins", {}), items=20, junk_items=5)
    assert report.ok, report.lines()


def test_every_preset_is_in_its_table_and_every_command_names_a_recipe():
    for name in PRESETS:
        assert f"| `{name}` |" in README
    for name in re.findall(r"lecritique (?:train|compare) (\w[\w-]*)", README):
        assert name in recipe_names()


def test_the_composition_that_it_mentions_is_one():
    config = compose(load_recipe("demo"), arm="tether", overrides=["critic.context.type=reference"])
    assert (config.estimator.type, config.critic.context.type) == ("tether", "reference")


def test_its_pictures_and_documents_are_there():
    for target in re.findall(r"\]\(([^):]+)\)", README) + re.findall(r"`((?:docs|examples)/[\w./-]+)`", README):
        assert (ROOT / target).exists(), target
