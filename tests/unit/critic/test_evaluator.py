"""The evaluator: one version per answer, its own weights, input order, finite values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import small_policy, trajectory

from lecritique.config.losses import Bce
from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import ContextInsertion, ValueRequest
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1], [0, 1], [0, 0, 0, 1, 0]]
CONTEXT = ContextInsertion(position=1, token_ids=np.array([4, 4, 8]))


def critic(seed: int) -> ValueModel:
    return ValueModel.from_policy(small_policy(seed), Bce(), seed=seed)


def evaluator(store: MemoryWeightStore, *, max_tokens: int = 1000) -> ValueEvaluator:
    return ValueEvaluator(critic(0), store, max_tokens=max_tokens, context_length=100)


def requests() -> list[ValueRequest]:
    return [
        ValueRequest(trajectory=trajectory(mask, member=m), context=CONTEXT if m % 2 else None)
        for m, mask in enumerate(MASKS)
    ]


def test_predictions_are_in_input_order_with_length_t_and_zero_off_the_mask() -> None:
    store = MemoryWeightStore()
    one = evaluator(store)
    one.adopt(store.put("critic", critic(1).state_dict()))
    alone = [one.score([each])[0] for each in requests()]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        for max_tokens in (1, 9, 1000):
            split = evaluator(store, max_tokens=max_tokens)
            split.adopt(store.put("critic", critic(1).state_dict()))
            found = split.score([requests()[index] for index in order])
            for index, each in zip(order, found, strict=True):
                assert each.rollout_id.member == index
                np.testing.assert_allclose(each.values, alone[index].values, rtol=0, atol=1e-12)
                off = ~np.array(MASKS[index], dtype=bool)
                assert len(each.values) == len(off) and not each.values[off].any()
                assert each.values[~off].all()
    assert one.score([]) == []


def test_every_answer_is_from_one_version_and_adoption_swaps_it() -> None:
    store = MemoryWeightStore()
    one = evaluator(store)
    assert one.version == -1
    seen = []
    for seed in (1, 2):
        one.adopt(store.put("critic", critic(seed).state_dict()))
        answer = one.score(requests())
        assert {each.value_version for each in answer} == {seed - 1} == {one.version}
        cold = evaluator(store)
        cold.adopt(store.put("other", critic(seed).state_dict()))
        for each, other in zip(answer, cold.score(requests()), strict=True):
            assert each.values.tolist() == other.values.tolist()
        seen.append(answer[1].values.tolist())
    assert seen[0] != seen[1]


def test_what_the_trainer_does_after_publishing_is_not_served() -> None:
    store, model = MemoryWeightStore(), critic(1)
    one = evaluator(store)
    one.adopt(store.put("critic", model.state_dict()))
    before = one.score(requests())[0].values.tolist()
    with torch.no_grad():
        model.head.weight.zero_()
    assert one.score(requests())[0].values.tolist() == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_divergence(bad: float) -> None:
    store, model = MemoryWeightStore(), critic(1)
    with torch.no_grad():
        model.head.bias.fill_(bad)
    one = evaluator(store)
    one.adopt(store.put("critic", model.state_dict()))
    with pytest.raises(DivergenceError, match=r"critic version 0 .* rollout 0\.0\.0"):
        one.score(requests())
