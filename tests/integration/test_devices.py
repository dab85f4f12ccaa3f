"""Nothing is left on the CPU, and nothing is read as if it were there, when the weights are on another device.

Runs on a device that is only pretended (`pretended_device.py`): every arm and loss makes a step there.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lecritique.config.schema import RunConfig
from lecritique.runtime.build import build, load_base
from tests.integration.pretended_device import PRETENDED, PretendedDevice, pretend, side_of
from tests.integration.short_runs import small_config, trained

# Between them every estimator's kind of baseline, every loss, and every teacher; a step of each takes a second.
ARMS = {
    "leave_one_out": ("leave_one_out", ()),
    "tether": ("tether", ()),
    "vaspo": ("vaspo", ()),
    "opsd": ("opsd", ()),
    "ppo": ("value", ("policy.loss.type=ppo", "policy.minibatch_size=4", "critic.loss.type=clipped_mse")),
    "dapo, overlong": ("mean", ("policy.loss.type=dapo", "estimator.overlong={type='soft',limit=18,cache=6}")),
    "hl_gauss": ("tether", ("critic.loss.type=hl_gauss", "estimator.gae_lambda={retained=0.4,length=20}")),
    "categorical": ("pvf", ("critic.loss.type=categorical", "critic.context.type=siblings")),
    "mse, top_p": ("value", ("critic.loss.type=mse", "policy.loss.type=ppo", "sampling.top_p=0.9", "sampling.top_k=9")),
    "ema teacher": ("rlsd", ("policy.teacher={type='ema',decay=0.9}",)),
}


@pytest.mark.parametrize("name", ARMS)
def test_a_step_touches_one_device_at_a_time(name):
    arm, overrides = ARMS[name]
    pretended_step(small_config("sampling.temperature=1.6", *overrides, arm=arm))


def test_the_numbers_are_those_of_the_cpu():
    """What is pretended to be there is computed here, by the same code and to the same bits."""
    config = small_config("sampling.temperature=1.6", arm="value")
    (expected,) = trained(build(load_base(config)), steps=1)
    found = pretended_step(config)
    for name in ("policy_loss", "policy_grad_norm", "value_loss", "reward"):
        assert found[name] == expected[name] != 0.0


def pretended_step(config: RunConfig) -> dict[str, float]:
    """Metrics of a step with every weight on the pretended device."""
    # Loading moves weights by means that are not followed here.
    base = load_base(config)
    with PretendedDevice():
        pretend(base.language.model)
        parts = build(base)
        (metrics,) = trained(parts, steps=1)
        assert all(side_of(weight) == PRETENDED for weight in parts.learner.policy.model.parameters())
    return metrics


def test_a_tensor_that_was_left_behind_is_found():
    with PretendedDevice():
        there, here = torch.ones(3, device="cuda"), torch.from_numpy(np.ones(3, dtype=np.float32))
        for wrong in (
            lambda: there + here,
            lambda: torch.stack([there, here]),
            lambda: torch.where(there > 0, here, there),
            lambda: here[there.long()],
            lambda: there.numpy(),
            lambda: pretend(torch.nn.Linear(3, 2))(here),
        ):
            with pytest.raises(AssertionError, match="CPU"):
                wrong()


def test_what_a_gpu_allows_is_allowed():
    with PretendedDevice():
        there, here = torch.ones(3, device="cuda"), torch.arange(3)
        assert (there + torch.tensor(2.0)).device == there[here].device == PRETENDED
        assert there.cpu().device.type == "cpu" and (there.cpu() + here).sum().item() == 6
        there.copy_(here)
        layer = pretend(torch.nn.Linear(3, 2))
        layer(there).sum().backward()
        assert layer.weight.grad.device == PRETENDED and there.tolist() == [0.0, 1.0, 2.0]
