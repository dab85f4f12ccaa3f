"""A critic update: the same for every split, on frozen targets, and refused when not finite."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from small_models import small_policy, trajectory

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import Bce, Categorical, ClippedMse, HlGauss, Mse
from lecritique.core.errors import DivergenceError
from lecritique.core.trajectory import ContextInsertion, ValueBatch, ValueSample
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1, 1, 1], [0, 1], [0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1]]
CONTEXT = ContextInsertion(position=1, token_ids=np.array([4, 4, 8]))
WHOLE = 100_000


def sample(member: int, mask: list[int], *, targets: float | None = None) -> ValueSample:
    own = trajectory(mask, member=member)
    column = np.random.default_rng(member).random(len(mask)) if targets is None else np.full(len(mask), targets)
    return ValueSample(
        rollout_id=own.rollout_id, trajectories=(own,), contexts=(CONTEXT if member % 2 else None,),
        value_targets=(np.where(own.action_mask, column, np.nan),), value_version=0,
        old_values=(np.where(own.action_mask, np.random.default_rng(50 + member).random(len(mask)), np.nan),),
    )  # fmt: skip


def batch() -> ValueBatch:
    return ValueBatch.of(tuple(sample(m, mask) for m, mask in enumerate(MASKS)))


def trainer(loss=None, *, max_tokens: int = WHOLE, dtype: torch.dtype = torch.float64) -> ValueTrainer:
    model = ValueModel.from_policy(small_policy(dtype=dtype), Bce() if loss is None else loss, seed=3)
    # The clip is far away, so that gradients are compared as they are.
    config = OptimizerConfig(learning_rate=1e-3, max_grad_norm=1e9)
    return ValueTrainer(model, config, MemoryWeightStore(), max_tokens=max_tokens)


def gradients(one: ValueTrainer) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in one.model.parameters()])


@pytest.mark.parametrize(
    "loss",
    [Bce(), Mse(), Categorical(atoms=5), HlGauss(low=-0.5, high=1.5, atoms=9), ClippedMse(eps_v=0.3)],
    ids=lambda loss: loss.type,
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_fault_9_loss_and_gradient_are_the_same_for_every_split(loss, dtype, tolerance: float) -> None:
    whole = trainer(loss, dtype=dtype)
    expected = whole.update(batch())
    for max_tokens in (1, 13, 25):
        split = trainer(loss, max_tokens=max_tokens, dtype=dtype)
        found = split.update(batch())
        assert found["value_loss"] == pytest.approx(expected["value_loss"], rel=tolerance)
        assert found.get("value_clip_fraction") == expected.get("value_clip_fraction")
        gap = (gradients(split) - gradients(whole)).norm() / gradients(whole).norm()
        assert gap < tolerance


def test_fault_9_squared_errors_of_one_and_three_tokens_have_the_token_mean() -> None:
    """Squared errors [.25] and [1, 1, 1]: the mean over four tokens of half of them is .40625."""
    samples = (sample(0, [0, 1], targets=0.5), sample(2, [0, 1, 1, 1], targets=-1.0))
    for max_tokens in (1, WHOLE):
        one = trainer(Mse(), max_tokens=max_tokens)
        with torch.no_grad():
            one.model.head.weight.zero_()
        assert one.update(ValueBatch.of(samples))["value_loss"] == pytest.approx(0.40625)


def saying(value: float, loss) -> ValueTrainer:
    """A critic whose value is the same everywhere."""
    one = trainer(loss)
    with torch.no_grad():
        one.model.head.weight.zero_()
        one.model.head.bias.fill_(value)
    return one


@pytest.mark.parametrize(
    ("target", "old", "new", "expected", "clipped"), [(10.0, 5.0, 1.0, 40.5, 0.0), (1.0, 0.5, 0.9, 0.045, 1.0)]
)
def test_fault_12_the_clipped_value_loss_takes_the_max(target, old, new, expected, clipped) -> None:
    each = sample(0, [0, 1, 1], targets=target)
    each = dataclasses.replace(each, old_values=(np.array([np.nan, old, old]),))
    one = saying(new, ClippedMse(eps_v=0.2))
    found = one.update(ValueBatch.of((each,)))
    assert found["value_loss"] == pytest.approx(expected, rel=1e-12)
    assert found["value_clip_fraction"] == clipped
    assert (found["value_grad_norm"] == 0.0) == bool(clipped)


def test_where_nothing_is_clipped_the_loss_is_mse_and_reports_no_fraction_of_its_own() -> None:
    wide, plain = trainer(ClippedMse(eps_v=1e6)), trainer(Mse())
    found, expected = wide.update(batch()), plain.update(batch())
    assert found.pop("value_clip_fraction") == 0.0 and found == expected
    assert torch.equal(gradients(wide), gradients(plain))
    assert 0.0 < trainer(ClippedMse(eps_v=0.3)).update(batch())["value_clip_fraction"] < 1.0


def test_a_clipped_loss_without_the_values_that_credited_the_rollout_is_an_error() -> None:
    bare = ValueBatch.of((dataclasses.replace(sample(0, [0, 1]), old_values=None),))
    with pytest.raises(ValueError, match=r"'critic\.loss\.type' = 'clipped_mse'"):
        trainer(ClippedMse()).update(bare)
    assert trainer(Mse()).update(bare)["value_loss"] > 0.0


def test_the_loss_is_the_mean_of_the_token_losses_of_each_sequence_alone() -> None:
    one, total, tokens = trainer(Bce()), 0.0, 0
    for each in batch().samples:
        own, context = each.trajectories[0], each.contexts[0]
        at, c = (context.position, context.token_ids) if context else (0, np.zeros(0, dtype=np.int64))
        ids = np.concatenate([own.token_ids[:at], c, own.token_ids[at:]])
        with torch.no_grad():
            outputs = one.model.head_outputs(one.model.hidden_states(torch.tensor(ids)[None]))[0]
        for t in np.flatnonzero(own.action_mask):
            log_no, log_yes = torch.log_softmax(outputs[t + len(c) - 1], dim=-1).tolist()
            target = each.value_targets[0][t]
            total -= target * log_yes + (1 - target) * log_no
            tokens += 1
    assert one.update(batch())["value_loss"] == pytest.approx(total / tokens, rel=1e-10)


def test_updates_lower_the_loss_and_versions_count_them() -> None:
    one = trainer(Mse())
    assert one.updates == 0 and one.publish().version == 0
    losses = []
    for update in range(1, 6):
        losses.append(one.update(batch())["value_loss"])
        assert one.updates == update == one.publish().version
    assert losses == sorted(losses, reverse=True)


def test_fault_35_nothing_on_the_mask_makes_no_step() -> None:
    silent = ValueBatch.of((sample(0, [0, 0, 0]),))
    one = trainer()
    before = copy.deepcopy(one.model.state_dict())
    assert one.update(silent) == {"value_loss": 0.0} and one.updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.model.state_dict().items())


def test_fault_35_rows_off_the_mask_leave_loss_and_gradient_as_they_were() -> None:
    one, other = trainer(), trainer()
    expected = one.update(batch())
    found = other.update(ValueBatch.of((*batch().samples, sample(8, [0, 0, 0, 0]))))
    assert found["value_loss"] == pytest.approx(expected["value_loss"], rel=1e-12)
    torch.testing.assert_close(gradients(other), gradients(one), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [Bce(), Mse()], ids=lambda loss: loss.type)
@pytest.mark.parametrize("where", ["target", "weights"])
def test_what_is_not_finite_is_divergence_and_leaves_the_weights(loss, where: str) -> None:
    one = trainer(loss)
    if where == "weights":
        with torch.no_grad():
            one.model.head.bias.fill_(float("nan"))
    before = copy.deepcopy(one.model.state_dict())
    bad = ValueBatch.of((sample(0, MASKS[0], targets=float("nan") if where == "target" else 1.0),))
    with pytest.raises(DivergenceError, match=r"value loss of critic update 1|value target is not finite"):
        one.update(bad)
    assert one.updates == 0
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0)), name
