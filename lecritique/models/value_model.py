"""The value function: a copy of the policy's backbone with a linear head on the final hidden state."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from lecritique.config.adapters import Lora
from lecritique.config.losses import Bce, Categorical, ClippedMse, HlGauss, Mse, ValueLoss
from lecritique.core.errors import CheckpointError
from lecritique.models.adapters import adapted, merged
from lecritique.numerics.value_losses import (
    ClippedValueLoss,
    categorical_loss,
    categorical_value,
    clipped_mse,
    hl_gauss_loss,
    mse_loss,
)

_VALUE_LOSS: TypeAdapter[ValueLoss] = TypeAdapter(ValueLoss)


class ValueModel(torch.nn.Module):
    """V(h_t) = E[R | h_t] (LC 2.3). The head is linear with bias; its output is float32 or wider."""

    def __init__(self, backbone: torch.nn.Module, loss: ValueLoss, *, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.loss = loss
        reference = next(backbone.parameters())
        width = int(backbone.config.get_text_config().hidden_size)  # type: ignore[operator, union-attr]
        # On the meta device no weight is drawn from the global generator.
        head = torch.nn.Linear(
            width, loss.outputs, device="meta", dtype=torch.promote_types(reference.dtype, torch.float32)
        )
        self.head = head.to_empty(device=reference.device)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(self.head.weight.shape, generator=generator) * 0.02)
            self.head.bias.zero_()

    @classmethod
    def from_policy(cls, policy: Any, loss: ValueLoss, *, seed: int) -> ValueModel:
        """A full copy of the policy's backbone with a randomly initialised head (LC's default)."""
        return cls(copy.deepcopy(policy.get_decoder()), loss, seed=seed)

    def with_adapter(self, lora: Lora, *, seed: int) -> ValueModel:
        """A critic that gives the same values: this one's backbone, frozen, with a new adapter, and a copy of its head.

        Raises:
            ConfigurationError: see `adapters.adapted`.
        """
        model = ValueModel(adapted(self.backbone, lora, seed=seed), self.loss, seed=0)
        model.head.load_state_dict(self.head.state_dict())
        return model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def hidden_states(self, token_ids_BL: torch.Tensor) -> torch.Tensor:
        """Final hidden states [B, L, H]."""
        return self.backbone(input_ids=token_ids_BL, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def head_outputs(self, states_NH: torch.Tensor) -> torch.Tensor:
        """Head outputs [N, outputs]."""
        return self.head(states_NH.to(self.head.weight.dtype))  # type: ignore[no-any-return]

    def values_of(self, outputs_NA: torch.Tensor) -> torch.Tensor:
        """Values in reward units, [N]."""
        match self.loss:
            case Mse() | ClippedMse():
                return outputs_NA[:, 0]
            case Bce() | Categorical() | HlGauss():
                low, high = self.loss.support
                return categorical_value(outputs_NA, low=low, high=high)

    def losses_of(self, outputs_NA: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        """Loss of each token, [N], for losses that do not clip."""
        return self.token_losses(outputs_NA, targets_N, None).loss_N

    def token_losses(
        self, outputs_NA: torch.Tensor, targets_N: torch.Tensor, old_values_N: torch.Tensor | None
    ) -> ClippedValueLoss:
        """Loss of each token and whether it was clipped, [N] each.

        Args:
            outputs_NA: of the head.
            targets_N: reward units.
            old_values_N: what `clipped_mse` clips around, reward units; other losses do not read it.

        Raises:
            ValueError: a clipped loss without old values.
        """
        match self.loss:
            case ClippedMse():
                if old_values_N is None:
                    raise ValueError("the value loss 'clipped_mse' needs the values that credited the rollout")
                return clipped_mse(outputs_NA[:, 0], old_values_N, targets_N, eps_v=self.loss.eps_v)
            case Mse():
                loss_N = mse_loss(outputs_NA[:, 0], targets_N)
            case Bce() | Categorical():
                low, high = self.loss.support
                loss_N = categorical_loss(outputs_NA, targets_N, low=low, high=high)
            case HlGauss():
                low, high = self.loss.support
                loss_N = hl_gauss_loss(outputs_NA, targets_N, low=low, high=high, sigma_bins=self.loss.sigma_bins)
        return ClippedValueLoss(loss_N=loss_N, clipped_N=torch.zeros_like(loss_N, dtype=torch.bool))


def save_value_model(model: ValueModel, folder: Path) -> None:
    """Backbone, head and loss as safetensors + JSON; an adapter is merged into the backbone."""
    model = merged(model)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "value_model.safetensors")
    (folder / "value_loss.json").write_text(json.dumps(model.loss.model_dump(mode="json")))
    model.backbone.config.save_pretrained(folder)  # type: ignore[operator, union-attr]


def saved_value_loss(folder: Path) -> ValueLoss:
    """The loss that a saved value model was trained with.

    Raises:
        CheckpointError: it is missing or no value loss.
    """
    path = folder / "value_loss.json"
    try:
        return _VALUE_LOSS.validate_python(_saved_loss(folder))
    except ValidationError as error:
        raise CheckpointError(f"'{path}' names no value loss that is known.") from error


def saved_precision(folder: Path) -> torch.dtype:
    """The precision of a saved value model's backbone.

    Raises:
        CheckpointError: the folder has no value model, or one without a backbone.
    """
    path = _weights_file(folder)
    try:
        with safe_open(path, framework="pt") as file:
            name = next((name for name in file.keys() if name.startswith("backbone.")), None)  # noqa: SIM118
            if name is None:
                raise CheckpointError(f"the value model in '{folder}' has no backbone.")
            return file.get_tensor(name).dtype  # type: ignore[no-any-return]
    except SafetensorError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from error


def _weights_file(folder: Path) -> Path:
    path = folder / "value_model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"'{folder}' holds no value model: value_model.safetensors is missing.")
    return path


def _saved_loss(folder: Path) -> object:
    """What value_loss.json holds; None when there is none, or none that can be read."""
    try:
        return json.loads((folder / "value_loss.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def value_model_folder(path: Path) -> Path | None:
    """The folder with a saved value model: `path` itself, or where weights and runs keep theirs; None without one."""
    places = (path, path / "critic", path / "weights" / "critic")
    return next((folder for folder in places if (folder / "value_model.safetensors").is_file()), None)


def load_value_weights(model: ValueModel, folder: Path, *, initialise_head: bool = False) -> None:
    """Weights of a saved value model, its head included, into `model`.

    Args:
        model: of the same architecture and value loss; left as it was when an error is raised.
        folder: written by `save_value_model`.
        initialise_head: take a checkpoint without a head, and keep the head that `model` has.

    Raises:
        CheckpointError: the folder has no value model, or one without a head, of another loss or of other sizes, or
            with a weight that is not finite.
    """
    path = _weights_file(folder)
    try:
        state = load_file(path, device=str(model.device))
    except SafetensorError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from error
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    if not any(name.startswith("head.") for name in state):
        if not initialise_head:
            raise CheckpointError(f"the value model in '{folder}' has no value head; a plain language model has none.")
        state |= head
    else:
        _require_loss(model, folder)
    _require_architecture(model, state, folder)
    for name, tensor in state.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"the value model in '{folder}' has a weight in '{name}' that is not finite.")
    model.load_state_dict(state)


def _require_loss(model: ValueModel, folder: Path) -> None:
    """A head means what its loss says: two logits are a Bernoulli of one reward range, not of another.

    Losses that read the same values from the same outputs, such as `mse` and `clipped_mse`, take each other's heads.
    """
    saved = _saved_loss(folder)
    try:
        same = _reading(_VALUE_LOSS.validate_python(saved)) == _reading(model.loss)
    except ValidationError:
        same = False
    if not same:
        raise CheckpointError(
            f"the value model in '{folder}' was trained with the loss {saved}, expected "
            f"{model.loss.model_dump(mode='json')}."
        )


def _reading(loss: ValueLoss) -> tuple[int, tuple[float, float]]:
    """What values are read from: how many outputs, over which range."""
    return loss.outputs, loss.support


def _require_architecture(model: ValueModel, state: Mapping[str, torch.Tensor], folder: Path) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    saved = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(own.keys() | saved.keys()):
        if own.get(name) != saved.get(name):
            raise CheckpointError(
                f"the value model in '{folder}' is of another architecture: '{name}' has the shape "
                f"{saved.get(name)}, expected {own.get(name)}."
            )
