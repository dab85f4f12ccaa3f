"""The value model: its head, its copy of the backbone, and its checkpoints."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import VOCABULARY, small_policy

from lecritique.config.losses import Bce, Categorical, ClippedMse, HlGauss, Mse
from lecritique.core.errors import CheckpointError
from lecritique.models.scoring import TokenRow, values
from lecritique.models.value_model import ValueModel, load_value_weights, save_value_model
from lecritique.numerics.value_losses import hl_gauss

LOSSES = [Bce(), Categorical(low=-1.0, high=2.0, atoms=7), HlGauss(atoms=7), Mse(), ClippedMse()]
ROWS = [TokenRow(token_ids=np.arange(length) * 5 % VOCABULARY, mask=np.arange(length) > 1) for length in (6, 9)]


def critic(loss=None, *, seed: int = 3, **changed) -> ValueModel:
    return ValueModel.from_policy(small_policy(**changed), Bce() if loss is None else loss, seed=seed)


def scored(model: ValueModel) -> list[list[float]]:
    return [column.tolist() for column in values(model, ROWS, max_tokens=100)]


def trained_twice(model: ValueModel) -> ValueModel:
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        adamw.zero_grad()
        outputs = model.head_outputs(model.hidden_states(torch.tensor([[1, 2, 3, 4]]))[0])
        ones = torch.ones(4, dtype=outputs.dtype)
        model.token_losses(outputs, ones, ones).loss_N.mean().backward()
        adamw.step()
    return model


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
def test_fault_10_train_two_steps_save_load_values_identical(tmp_path: Path, loss) -> None:
    saved = trained_twice(critic(loss))
    save_value_model(saved, tmp_path)
    other = critic(loss, seed=99)
    assert scored(other) != scored(saved)
    load_value_weights(other, tmp_path)
    assert scored(other) == scored(saved)


def without_head(folder: Path) -> None:
    path = folder / "value_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if not name.startswith("head.")}, path)


def test_fault_10_a_checkpoint_without_a_head_is_an_error_unless_told_to_initialise_one(tmp_path: Path) -> None:
    saved = trained_twice(critic())
    save_value_model(saved, tmp_path)
    without_head(tmp_path)
    other = critic(seed=99)
    head = copy.deepcopy(other.head.state_dict())
    with pytest.raises(CheckpointError, match="has no value head"):
        load_value_weights(other, tmp_path)
    load_value_weights(other, tmp_path, initialise_head=True)
    assert torch.equal(other.head.weight, head["weight"]) and torch.equal(other.head.bias, head["bias"])
    assert torch.equal(next(other.backbone.parameters()), next(saved.backbone.parameters()))


def test_half_a_head_other_sizes_another_loss_and_broken_files_are_checkpoint_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing"):
        load_value_weights(critic(), tmp_path)
    save_value_model(critic(), tmp_path)
    before = critic(seed=4)
    untouched = scored(before)
    with pytest.raises(CheckpointError, match=r"trained with the loss .*bce.*expected .*mse"):
        load_value_weights(critic(Mse()), tmp_path)
    with pytest.raises(CheckpointError, match="another architecture"):
        load_value_weights(critic(layers=1), tmp_path)
    path = tmp_path / "value_model.safetensors"
    state = load_file(path)
    save_file({name: tensor for name, tensor in state.items() if name != "head.bias"}, path)
    with pytest.raises(CheckpointError, match=r"'head.bias' has the shape None"):
        load_value_weights(before, tmp_path)
    save_file({**state, "head.weight": torch.zeros(2, 5)}, path)
    with pytest.raises(CheckpointError, match=r"'head.weight' has the shape \(2, 5\)"):
        load_value_weights(before, tmp_path)
    path.write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_value_weights(before, tmp_path)
    assert scored(before) == untouched


def test_two_logits_of_another_reward_range_are_another_loss(tmp_path: Path) -> None:
    save_value_model(critic(Bce()), tmp_path)
    assert json.loads((tmp_path / "value_loss.json").read_text()) == {"type": "bce"}
    with pytest.raises(CheckpointError, match="loss"):
        load_value_weights(critic(Categorical(low=0.0, high=5.0, atoms=2)), tmp_path)


def test_an_mse_head_has_no_sigmoid_and_bce_is_the_probability_of_its_second_atom() -> None:
    model = critic(Mse())
    assert model.values_of(torch.tensor([[-7.0], [250.0]])).tolist() == [-7.0, 250.0]
    found = critic(Bce()).values_of(torch.tensor([[0.3, 1.5]], dtype=torch.float64))
    assert found.tolist() == pytest.approx([1.0 / (1.0 + np.exp(-1.2))])
    wide = critic(Categorical(low=-1.0, high=2.0, atoms=4)).values_of(torch.tensor([[0.0, 0.0, 0.0, 100.0]]))
    assert wide.tolist() == pytest.approx([2.0])


def test_the_head_comes_from_its_seed_alone_and_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = critic(seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(critic(seed=3).head.weight, first.head.weight)
    assert not torch.equal(critic(seed=4).head.weight, first.head.weight)
    assert first.head.weight.abs().max() > 0
    assert first.head.bias.tolist() == [0.0, 0.0]


def test_the_backbone_is_a_copy_of_the_policys() -> None:
    policy = small_policy()
    before = copy.deepcopy(policy.state_dict())
    model = ValueModel.from_policy(policy, Bce(), seed=0)
    assert torch.equal(model.backbone.embed_tokens.weight, policy.get_input_embeddings().weight)
    trained_twice(model)
    assert not torch.equal(model.backbone.embed_tokens.weight, policy.get_input_embeddings().weight)
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_head_of_a_bfloat16_backbone_is_float32() -> None:
    model = critic(dtype=torch.bfloat16)
    assert model.head.weight.dtype == torch.float32
    assert model.head_outputs(model.hidden_states(torch.tensor([[1, 2]]))[0]).dtype == torch.float32


@pytest.mark.parametrize(
    ("first", "second"),
    [(Mse(), ClippedMse()), (Categorical(atoms=7), HlGauss(atoms=7)), (Bce(), Categorical(atoms=2))],
    ids=lambda loss: loss.type,
)
def test_losses_that_read_the_same_values_from_a_head_take_it_from_each_other(tmp_path: Path, first, second) -> None:
    saved = trained_twice(critic(first))
    save_value_model(saved, tmp_path)
    other = critic(second, seed=99)
    load_value_weights(other, tmp_path)
    assert scored(other) == scored(saved)
    with pytest.raises(CheckpointError, match="trained with the loss"):
        load_value_weights(critic(HlGauss(low=-1.0, atoms=7)), tmp_path)


def test_the_histogram_loss_is_lowest_where_its_value_is_the_target() -> None:
    """`hl_gauss` reads its value as `categorical` does, and spreads the target as numerics says."""
    one = critic(HlGauss(low=-1.0, high=2.0, atoms=31, sigma_bins=0.5))
    target = torch.tensor([0.4], dtype=torch.float64)
    logits = hl_gauss(target, low=-1.0, high=2.0, atoms=31, sigma_bins=0.5).clamp(min=1e-30).log().requires_grad_()
    assert one.values_of(logits.detach()).item() == pytest.approx(0.4, abs=1e-3)
    one.losses_of(logits, target).sum().backward()
    assert logits.grad.abs().max() < 1e-12
