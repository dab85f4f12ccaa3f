"""Sizes of models: what transformers builds from the same configuration, or one sentence on what they lack."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from lecritique.core.errors import ConfigurationError
from lecritique.models.loading import BUNDLED, load_causal_lm
from lecritique.planning.shapes import KNOWN, shape_from, shape_of

SMALL = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip


def built(config: dict) -> torch.nn.Module:
    own = dict(config)
    made = CONFIG_MAPPING[own.pop("model_type")](**own)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(made)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_has_as_many_parameters_as_transformers_gives_it(name):
    shape, model = shape_of(name), built(dict(KNOWN[name]))
    assert shape.parameters == model.num_parameters() and shape.source == "the table of known models"
    assert shape.backbone_parameters == sum(p.numel() for p in model.get_decoder().parameters())
    layers = sum(p.numel() for p in model.get_decoder().layers.parameters())
    assert shape.trunk_parameters == layers + shape.hidden  # and the last norm
    assert shape.context_length == model.config.max_position_embeddings


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {**SMALL, "attention_bias": True},
        {**SMALL, "model_type": "qwen2", "num_key_value_heads": 2},
        {**SMALL, "model_type": "qwen3", "head_dim": 6, "num_key_value_heads": 2},
    ],
    ids=["llama", "shared keys", "bias", "qwen2", "head width"],
)
def test_other_architectures_are_counted(config):
    assert shape_from(config, name="m", source="s").parameters == built(config).num_parameters()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_is_described_by_its_own_file(name):
    shape, language = shape_of(name), load_causal_lm(name)
    assert shape.parameters == language.model.num_parameters() and "config.json of" in shape.source
    assert shape.context_length == language.context_length and shape.partial_layers == ()


def test_sizes_are_found_without_loading_torch():
    code = (
        "import sys\nimport lecritique.planning.plans, lecritique.cli.plan\n"
        "from lecritique.planning.shapes import shape_of\n"
        "shape_of('tiny-knights'), shape_of('Qwen/Qwen3-0.6B')\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_cache_is_that_of_the_layers_that_keep_one():
    shape = shape_of("Qwen/Qwen3-4B-Instruct-2507")
    assert shape.cache_numbers(1000) == 1000 * 36 * 2 * 8 * 128
    windowed = shape_of("allenai/Olmo-3-7B-Instruct-DPO")
    assert windowed.cache_numbers(8192) == (24 * 4096 + 8 * 8192) * 2 * 32 * 128
    assert windowed.partial_layers == ("sliding_attention",)
    assert shape_of("Qwen/Qwen3.5-4B").cache_numbers(100) == 8 * 100 * 2 * 4 * 256


def test_a_folder_is_read_and_a_nested_text_model_found(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": SMALL}))
    assert shape_of(str(tmp_path)).parameters == built(SMALL).num_parameters()
    AutoConfig.from_pretrained(BUNDLED["tiny"])  # the file is one that transformers reads


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "expected a JSON object"),
        ("[" * 100_000, "cannot be read as JSON"),
        (json.dumps({**SMALL, "hidden_size": "8"}), "'hidden_size' = '8'"),
        (json.dumps({**SMALL, "vocab_size": True}), "'vocab_size' = True"),
        (json.dumps({**SMALL, "num_hidden_layers": 0}), "'num_hidden_layers' = 0"),
        (json.dumps({**SMALL, "num_hidden_layers": 10**9}), "'num_hidden_layers' = 1000000000"),
        (json.dumps({**SMALL, "layer_types": ["full_attention"]}), "must have 2 entries"),
        (json.dumps({**SMALL, "num_experts": 8}), "mixture of experts"),
        ('{"hidden_size": NaN}', "'hidden_size' = nan"),
    ],
)
def test_a_file_that_says_no_sizes_is_refused(tmp_path, content, said):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        shape_of(str(tmp_path))
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["nobody/nothing", "not a model", "a/b/c", ""])
def test_an_unknown_model_is_named_with_what_is_known(name):
    with pytest.raises(ConfigurationError, match="Qwen/Qwen3-4B-Instruct-2507"):
        shape_of(name)
