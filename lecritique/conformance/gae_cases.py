"""The cases: small enough to be checked by hand, each with the one thing that it is about.

delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lambda A_{t+1}, target_t = V_t + the same with the target's
lambda; "t+1" is the next action token of the episode and V after the last one is 0 unless bootstrapped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lecritique.conformance.request import GaeRequest

Tier = Literal["equation", "hygiene"]
Row = Sequence[float]

_LONG = 8192
_LONG_LAMBDA = 0.4 ** (1.0 / _LONG)
_NAN = math.nan
# By lambda, of an episode with two observation tokens before its last action.
_OBSERVATION_ADVANTAGES = (
    (1.0, (0.8, 0.6, 0.4)),
    (0.95, (0.751, 0.58, 0.4)),
    (0.5, (0.4, 0.4, 0.4)),
    (0.0, (0.2, 0.2, 0.4)),
)


@dataclass(frozen=True, kw_only=True)
class GaeCase:
    """One request with its right answer on the action tokens, in order; None where it is not asked for.

    `equation`: a failure means wrong numbers in training. `hygiene`: a failure means that numbers are right only as
    long as nothing unclean stands in unused slots, or nobody differentiates.
    """

    name: str
    about: str
    request: GaeRequest
    advantages: tuple[float, ...]
    targets: tuple[float, ...] | None = None
    tolerance: float | None = None
    tier: Tier = "equation"
    differentiable_values: bool = False


def _request(
    rewards: Sequence[Row],
    values: Sequence[Row],
    mask: Sequence[str],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    target_lambda: float | None = None,
    bootstrap: Row | None = None,
    episodes: tuple[tuple[int, ...], ...] | None = None,
    packed: tuple[tuple[int, ...], ...] | None = None,
) -> GaeRequest:
    """A request from rows; a mask row is a string of 1 (action) and 0."""
    F64 = torch.float64
    return GaeRequest(
        rewards_BT=torch.tensor(rewards, dtype=F64),
        values_BT=torch.tensor(values, dtype=F64),
        action_mask_BT=torch.tensor([[slot == "1" for slot in row] for row in mask]),
        gamma=gamma,
        gae_lambda=lam,
        value_target_lambda=lam if target_lambda is None else target_lambda,
        bootstrap_B=None if bootstrap is None else torch.tensor(bootstrap, dtype=F64),
        episodes=episodes,
        packed_lengths=packed,
    )


def _equation_cases() -> list[GaeCase]:
    rewards, values, mask = [[0, 0, 0, 1.0]], [[0.5, 0.6, 0.4, 0.7]], ["1111"]
    return [
        GaeCase(
            name="monte-carlo",
            about="gamma = lambda = 1: A = R - V, target = R",
            request=_request(rewards, values, mask),
            advantages=(0.5, 0.4, 0.6, 0.3),
            targets=(1.0, 1.0, 1.0, 1.0),
        ),
        GaeCase(
            name="failure",
            about="reward 0: A = -V, also on the last token",
            request=_request([[0.0] * 4], values, mask),
            advantages=(-0.5, -0.6, -0.4, -0.7),
            targets=(0.0, 0.0, 0.0, 0.0),
        ),
        GaeCase(
            name="one-step",
            about="lambda = 0: A = V_{t+1} - V_t, last R - V",
            request=_request(rewards, values, mask, lam=0.0),
            advantages=(0.1, -0.2, 0.3, 0.3),
            targets=(0.6, 0.4, 0.7, 1.0),
        ),
        GaeCase(
            name="discounted",
            about="gamma .9, lambda .5",
            request=_request(rewards, values, mask, gamma=0.9, lam=0.5),
            advantages=(0.0059125, -0.07575, 0.365, 0.3),
            targets=(0.5059125, 0.52425, 0.765, 1.0),
        ),
        GaeCase(
            name="independent-lambdas",
            about="advantage lambda .5 beside Monte Carlo targets",
            request=_request(rewards, values, mask, lam=0.5, target_lambda=1.0),
            advantages=(0.1125, 0.025, 0.45, 0.3),
            targets=(1.0, 1.0, 1.0, 1.0),
        ),
        GaeCase(
            name="dense-rewards",
            about="a reward on every token; gamma .5, lambda .5",
            request=_request([[1.0, 2.0, 4.0]], [[0.5, 1.0, 2.0]], ["111"], gamma=0.5, lam=0.5),
            advantages=(1.0 + 0.25 * 2.5, 2.0 + 0.25 * 2.0, 2.0),
        ),
        GaeCase(
            name="long-response",
            about="8,192 tokens, lambda = .4^(1/8192): the first token gets .4 of the reward, not 1 (low precision)",
            request=_request([[0.0] * (_LONG - 1) + [1.0]], [[0.0] * _LONG], ["1" * _LONG], lam=_LONG_LAMBDA),
            advantages=tuple(_LONG_LAMBDA ** (_LONG - 1 - t) for t in range(_LONG)),
            tolerance=1e-3,
        ),
    ]


def _mask_cases() -> list[GaeCase]:
    rewards, values, mask = [[0, 0, 0, 0, 1.0]], [[0.2, 0.4, 9.0, -9.0, 0.6]], ["11001"]
    return [
        *(
            GaeCase(
                name=f"observation-tokens-lambda-{lam}",
                about="a tool's tokens between actions are no step: t+1 is the next action token",
                request=_request(rewards, values, mask, lam=lam),
                advantages=expected,
            )
            for lam, expected in (
                (1.0, (0.8, 0.6, 0.4)),
                (0.95, (0.751, 0.58, 0.4)),
                (0.5, (0.4,) * 3),
                (0.0, (0.2, 0.2, 0.4)),
            )
        ),
        GaeCase(
            name="observation-tokens-gamma",
            about="nor are they a discount: gamma .5, lambda 1",
            request=_request(
                [[0, 0, 0, 0, 0, 0, 0, 1.0]],
                [[9.0, 0.2, 0.4, -7.0, 55.0, 0.6, 123.0, 0.8]],
                ["01100101"],
                gamma=0.5,
            ),
            advantages=(-0.075, -0.15, -0.1, 0.2),
        ),
        GaeCase(
            name="exact-critic",
            about="a critic that knows the outcome leaves no advantage, whatever it says on observation tokens",
            request=_request([[0, 0, 0, 0, 0, 1.0]], [[1.0, 1.0, -50.0, 60.0, 1.0, 1.0]], ["110011"], lam=0.95),
            advantages=(0.0, 0.0, 0.0, 0.0),
            targets=(1.0, 1.0, 1.0, 1.0),
        ),
        GaeCase(
            name="ends-on-observation",
            about="environment tokens behind the last action take no part of its reward; gamma = lambda = .5",
            request=_request([[0, 1.0, 0, 0]], [[0.2, 0.4, 0.0, 0.0]], ["1100"], gamma=0.5, lam=0.5),
            advantages=(0.15, 0.6),
        ),
        GaeCase(
            name="value-after-the-end",
            about="nothing is read behind the last action token: its next value is 0",
            request=_request([[0, 0, 1.0, 0]], [[0.5, 0.5, 0.5, 0.7]], ["1110"], lam=0.95),
            advantages=(0.45125, 0.475, 0.5),
        ),
        GaeCase(
            name="prompt-tokens",
            about="prompt tokens in front change nothing",
            request=_request([[0, 0, 0, 1.0]], [[3.0, -4.0, 0.5, 0.25]], ["0011"], gamma=0.9, lam=0.5),
            advantages=(0.9 * 0.25 - 0.5 + 0.45 * 0.75, 0.75),
        ),
        GaeCase(
            name="padding",
            about="rows of different length in one batch: each is what it is alone; content of padding is 1e6",
            request=_request(
                [[0, 1.0, 1e6, 1e6], [0, 0, 0, 1.0], [1.0, 1e6, 1e6, 1e6]],
                [[0.5, 0.25, 1e6, 1e6], [0.5, 0.6, 0.4, 0.7], [0.3, 1e6, 1e6, 1e6]],
                ["1100", "1111", "1000"],
                gamma=0.9,
                lam=0.5,
            ),
            advantages=(0.9 * 0.25 - 0.5 + 0.45 * 0.75, 0.75, 0.0059125, -0.07575, 0.365, 0.3, 0.7),
        ),
        GaeCase(
            name="no-actions",
            about="a row without action tokens disturbs no other row",
            request=_request([[0, 0, 0], [0, 0, 1.0]], [[0.1, 0.2, 0.3]] * 2, ["000", "111"], lam=0.5),
            advantages=(0.1 + 0.5 * (0.1 + 0.5 * 0.7), 0.1 + 0.5 * 0.7, 0.7),
        ),
    ]


def _episode_cases() -> list[GaeCase]:
    return [
        GaeCase(
            name="truncated-terminal",
            about="a response cut by the limit ends with value 0 unless it is bootstrapped",
            request=_request([[0, 0, 0]], [[0.3, 0.5, 0.0]], ["110"]),
            advantages=(-0.3, -0.5),
        ),
        GaeCase(
            name="truncated-bootstrap",
            about="with a value of the state after the cut, it takes the place of 0",
            request=_request([[0, 0, 0]], [[0.3, 0.5, 0.0]], ["110"], bootstrap=[0.5]),
            advantages=(0.2, 0.0),
        ),
        GaeCase(
            name="bootstrap-discounted",
            about="the bootstrap is discounted once; the reward is still added; other rows end",
            request=_request(
                [[0, 0.25], [0, 0.25]], [[0.3, 0.5]] * 2, ["11", "11"], gamma=0.5, lam=0.5, bootstrap=[0.8, 0.0]
            ),
            advantages=(-0.05 + 0.25 * 0.15, 0.15, -0.05 - 0.25 * 0.25, -0.25),
        ),
        GaeCase(
            name="segments",
            about="an episode in two rows (its context was compacted) is one chain: lambda .5",
            request=_request([[0, 0], [1.0, 0]], [[0.2, 0.4], [0.6, 7.0]], ["11", "10"], lam=0.5, episodes=((0, 1),)),
            advantages=(0.4, 0.4, 0.4),
            targets=(0.6, 0.8, 1.0),
        ),
        GaeCase(
            name="packed",
            about="two sequences in one row do not see each other",
            request=_request([[0, 0, 0, 1.0]], [[0.1, 0.2, 0.7, 0.6]], ["1111"], packed=((2, 2),)),
            advantages=(-0.1, -0.2, 0.3, 0.4),
        ),
        GaeCase(
            name="packed-one-step",
            about="nor does the last token of one read the first value of the next: lambda 0",
            request=_request([[0, 0, 0, 1.0]], [[0.1, 0.2, 0.7, 0.6]], ["1111"], lam=0.0, packed=((2, 2),)),
            advantages=(0.1, -0.2, -0.1, 0.4),
        ),
    ]


def _hygiene_cases() -> list[GaeCase]:
    return [
        GaeCase(
            name="nan-off-the-mask",
            about="NaN in unused slots reaches no action token: select, do not multiply",
            request=_request([[0, _NAN, 1.0, _NAN]], [[0.2, _NAN, 0.6, _NAN]], ["1010"], lam=0.5),
            advantages=(0.4 + 0.5 * 0.4, 0.4),
            tier="hygiene",
        ),
        GaeCase(
            name="no-gradient",
            about="neither advantages nor targets carry a gradient back to the values",
            request=_request([[0, 1.0]], [[0.2, 0.6]], ["11"]),
            advantages=(0.8, 0.4),
            tier="hygiene",
            differentiable_values=True,
        ),
    ]


GAE_CASES: tuple[GaeCase, ...] = (*_equation_cases(), *_mask_cases(), *_episode_cases(), *_hygiene_cases())
