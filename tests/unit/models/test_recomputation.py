"""Activations that are computed again: the same gradients to the bit, fewer numbers kept, nothing without gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import VOCABULARY, small_policy

from lecritique.config.adapters import LoraAdapter
from lecritique.models.adapters import adapted
from lecritique.models.recomputation import recompute_activations

IDS = torch.arange(24).reshape(2, 12) % VOCABULARY


def gradients(model) -> list[torch.Tensor]:
    torch.log_softmax(model(input_ids=IDS, use_cache=False).logits, dim=-1).square().mean().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def counted(model) -> list[str]:
    """Names of the layers whose MLP runs, in order."""
    calls: list[str] = []
    for number, layer in enumerate(model.get_decoder().layers):
        layer.mlp.register_forward_pre_hook(lambda *_, n=number: calls.append(str(n)))
    return calls


@pytest.mark.parametrize("adapter", [False, True])
def test_gradients_are_the_same_to_the_bit(adapter):
    plain, again = (
        adapted(small_policy(), LoraAdapter(rank=2), seed=1) if adapter else small_policy() for _ in range(2)
    )
    recompute_activations(again)
    names = [*again.state_dict()]
    calls = counted(again)
    one, other = gradients(plain), gradients(again)
    assert len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert calls == ["0", "1", "1", "0"]
    assert names == [*plain.state_dict()]


def test_less_is_kept_for_the_gradient():
    kept = {}
    for recomputes in (False, True):
        model = small_policy(layers=4)
        if recomputes:
            recompute_activations(model)
        sizes: dict[int, int] = {}
        alive = []

        def keep(tensor, sizes=sizes, alive=alive):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            states = model.get_decoder()(input_ids=IDS, use_cache=False).last_hidden_state
        assert states.requires_grad
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept[recomputes] = sum(size for place, size in sizes.items() if place not in weights)
    assert kept[True] < 0.4 * kept[False]


def test_nothing_is_computed_twice_without_a_gradient_nor_when_asked_twice():
    model = small_policy()
    for _ in range(2):
        recompute_activations(model)
    calls = counted(model)
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False)
    assert calls == ["0", "1"]
    calls.clear()
    gradients(model)
    assert calls == ["0", "1", "1", "0"]


def test_a_copy_runs_its_own_layers():
    model = small_policy()
    recompute_activations(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = other(input_ids=IDS, use_cache=False).logits
        for weight in model.parameters():
            weight.zero_()
        assert torch.equal(other(input_ids=IDS, use_cache=False).logits, before)
        assert before.abs().max() > 0
