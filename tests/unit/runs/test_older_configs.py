"""What a run of an earlier version meant by keys that it does not have."""

import json

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError
from lecritique.runs.directory import read_config


def test_a_run_without_a_layout_read_padded_rows(tmp_path):
    tree = compose(load_recipe("demo")).model_dump(mode="json", exclude_none=True)
    assert "layout" not in tree["runtime"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert read_config(tmp_path).runtime.layout == "padded"
    tree["runtime"]["layout"] = "packed"
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert read_config(tmp_path).runtime.layout == "packed"


def test_one_that_is_none_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"runtime": {"layout": "end to end"}}')
    with pytest.raises(ConfigurationError, match="is not a configuration of this version"):
        read_config(tmp_path)
