"""LoRA (arXiv:2106.09685): low-rank adapters on frozen weights. Everything that needs peft is here.

    plain model ──adapted──► its weights, frozen, with A and B beside each chosen map ──merged──► plain model

An adapted model is a module tree of its own over the plain model's tensors. Policy, critic, engine, evaluator and
teacher can so read one set of frozen weights, each through an adapter of its own. No adapter is ever switched on or
off, which would be one switch for all threads.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lecritique.config.adapters import Lora
from lecritique.core.errors import ConfigurationError
from lecritique.models.weights import state_digest

# What peft calls the one adapter of a model.
_NAME = "default"
_MARKS = (f".lora_A.{_NAME}.", f".lora_B.{_NAME}.")
# The head of a value model, which trains beside an adapter.
_HEAD = "head."


def require_peft() -> None:
    """Raise ConfigurationError unless peft is installed."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigurationError(
            "'model.adapter.type' and 'critic.backbone.type' other than 'none' and 'copy' need the package peft: "
            "pip install 'lecritique[lora]'"
        )


def adapted(model: Any, lora: Lora, *, seed: int) -> Any:
    """A model with the same weights, frozen, and a new adapter that changes nothing yet (B = 0).

    Args:
        model: a causal language model or its decoder; it stays as it is, and its weights must not change from now on.
        lora: which maps get an adapter, and of what size.
        seed: of A, which is uniform in +-1 / sqrt(width of the input).

    Raises:
        ConfigurationError: peft is not installed, or the model has no such linear map in its layers.
    """
    require_adaptable(model, lora)
    from peft import LoraConfig, inject_adapter_in_model

    base = state_digest(model.state_dict())
    # Parameters of its own over the same memory: that these are frozen is no business of the given model.
    shared = {id(weight): torch.nn.Parameter(weight.detach(), requires_grad=False) for weight in model.parameters()}
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # used as a factor, a fraction does as well
        target_modules=list(lora.target_modules),
        base_model_name_or_path=str(model.name_or_path),
    )
    with torch.random.fork_rng(devices=[]):
        found = inject_adapter_in_model(config, copy.deepcopy(model, shared), _NAME)
    _draw(found, seed)
    found.frozen_digest = base
    return found.eval()


def has_adapter(model: Any) -> bool:
    """Whether the model, or a value model's backbone, is an adapted one."""
    return any(_MARKS[0] in name for name, _ in model.named_parameters())


def is_own(name: str) -> bool:
    """Whether a weight of an adapted model is its own: part of the adapter or of a value head, and not frozen."""
    return name.startswith(_HEAD) or any(mark in name for mark in _MARKS)


def own_weights(model: Any) -> dict[str, torch.Tensor]:
    """The state dict without what is frozen under an adapter: what is published, saved and restored."""
    state: dict[str, torch.Tensor] = model.state_dict()
    return {name: tensor for name, tensor in state.items() if is_own(name)} if has_adapter(model) else state


def load_own_weights(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Load what `own_weights` gave, in place.

    Raises:
        ValueError: it is of a model with other weights of its own.
    """
    if not has_adapter(model):
        model.load_state_dict(state)
        return
    if state.keys() != own_weights(model).keys():
        other = sorted(state.keys() ^ own_weights(model).keys())
        raise ValueError(f"these weights are of another adapter: {len(other)} names differ, the first is {other[0]}")
    model.load_state_dict(state, strict=False)


def copied(model: Any) -> Any:
    """A copy that changes for itself; what is frozen under an adapter is read from the same memory."""
    frozen = [weight for name, weight in model.named_parameters() if not is_own(name)] if has_adapter(model) else []
    return copy.deepcopy(model, {id(weight): weight for weight in frozen})


def merged(model: Any) -> Any:
    """A plain model that computes the same up to rounding: W + (alpha / rank) B A in place of each adapted map.

    A model without an adapter is given back as it is. Weights without an adapter are those of `model`, not copies.
    """
    if not has_adapter(model):
        return model
    from peft.tuners.lora import LoraLayer

    plain = copied(model)
    for name, layer in [(n, m) for n, m in plain.named_modules() if isinstance(m, LoraLayer)]:
        linear = layer.get_base_layer()
        weight = linear.weight
        change = layer.get_delta_weight(_NAME).detach()  # type: ignore[operator]
        linear.weight = torch.nn.Parameter((weight + change).to(weight.dtype), requires_grad=False)
        plain.set_submodule(name, linear)
    for module in (plain, getattr(plain, "backbone", None)):
        for left in ("peft_config", "frozen_digest"):
            if hasattr(module, left):
                delattr(module, left)
    return plain


def frozen_digest(model: Any) -> str | None:
    """A name of the weights under an adapter, None without one: an adapter means nothing on others."""
    found: str | None = getattr(getattr(model, "backbone", model), "frozen_digest", None)
    return found


def trained_parameters(model: Any) -> int:
    """How many numbers training changes."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def save_adapter(model: Any, folder: Path) -> None:
    """The adapter alone, as peft's `PeftModel.from_pretrained(base, folder)` reads it.

    Args:
        model: an adapted causal language model.
        folder: made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model.peft_config[_NAME].to_dict(), "task_type": "CAUSAL_LM", "inference_mode": True}
    written = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    state = {
        "base_model.model." + name.replace(f".{_NAME}.", "."): tensor.detach().cpu().contiguous()
        for name, tensor in own_weights(model).items()
    }
    save_file(state, folder / "adapter_model.safetensors")


@torch.no_grad()
def _draw(model: Any, seed: int) -> None:
    """A as peft draws it, from a generator of its own on the CPU: the same on every machine.

    Adapters are float32 or wider, whatever the frozen weights are: steps are too small for half precision.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if not is_own(name):
            continue
        weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))
        if _MARKS[0] in name:
            drawn = torch.rand(weight.shape, generator=generator) * 2 - 1
            weight.copy_(drawn / weight.shape[1] ** 0.5)


def require_adaptable(model: Any, lora: Lora, *, key: str = "target_modules") -> None:
    """Raise ConfigurationError, naming `key`, unless peft is installed and the model has the maps that are to adapt."""
    require_peft()
    head = model.get_output_embeddings()
    maps = {
        name: name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    for wanted in lora.target_modules:
        if wanted not in maps.values():
            raise ConfigurationError(
                f"'{key}' names {wanted!r}, and the model '{model.name_or_path}' has no such linear map in "
                f"its layers; it has {', '.join(sorted(set(maps.values()))) or 'none'}."
            )
