"""A small episode tree whose every outcome is enumerated, so that expectations are sums and not estimates.

An episode is five tokens: prompt, first action (3 choices), an observation from the environment (2), and two more
actions (2 choices each). A task variant z, hidden from the policy, shapes the observation and the reward; the
policy sees the tokens only, so z is independent of each action given the history. All members of a group share z.

Shapes: E episodes (of both variants), T = 5 tokens, P policy parameters, G groups of two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch

from lecritique.numerics.gae import gae as package_gae
from lecritique.numerics.gae import terminal_rewards

F64 = torch.float64
ACTIONS = (1, 3, 4)
BRANCHES = {1: 3, 2: 2, 3: 2, 4: 2}
NAN = float("nan")
History = tuple[int, ...]


@dataclass(frozen=True)
class Episode:
    """One outcome: its variant, its tokens (the prompt token is 0) and its reward."""

    variant: int
    tokens: History
    reward: float

    def history(self, t: int) -> History:
        """What the policy knows when it chooses token t."""
        return self.tokens[:t]


class Tree:
    """All episodes, their probabilities, the scores of their actions and exact values of any history.

    Args:
        seed: of the policy's logits, the observation probabilities and the rewards.
        variant_matters: False makes both variants the same task.
    """

    def __init__(self, seed: int = 0, *, variant_matters: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        suffixes = list(itertools.product(range(3), range(2), range(2), range(2)))
        rewards = torch.rand(2, len(suffixes), dtype=F64, generator=generator)
        rewards[1] += 0.8
        if not variant_matters:
            rewards[1] = rewards[0]
        self.episodes = [
            Episode(z, (0, *suffix), float(rewards[z, i])) for z in range(2) for i, suffix in enumerate(suffixes)
        ]
        self._variant_probability = torch.tensor([0.4, 0.6], dtype=F64)
        self._observation_probability = torch.tensor([[0.3, 0.6, 0.5], [0.8, 0.25, 0.5]], dtype=F64)
        if not variant_matters:
            self._observation_probability[1] = self._observation_probability[0]
        nodes = sorted({e.history(t) for e in self.episodes for t in ACTIONS})
        starts = itertools.accumulate((BRANCHES[len(node)] for node in nodes), initial=0)
        self._slots = dict(zip(nodes, starts, strict=False))
        self.parameters_P = torch.randn(sum(BRANCHES[len(n)] for n in nodes), dtype=F64, generator=generator)
        self.action_mask_ET = torch.tensor([[t in ACTIONS for t in range(5)]] * len(self.episodes))

    @cached_property
    def rewards(self) -> torch.Tensor:
        """Reward of each episode."""
        return torch.tensor([e.reward for e in self.episodes], dtype=F64)

    def log_policy(self, parameters_P: torch.Tensor) -> torch.Tensor:
        """Log-probability log pi(action | history), 0 on tokens that are not actions."""
        rows = []
        for e in self.episodes:
            row = [torch.zeros((), dtype=F64)] * 5
            for t in ACTIONS:
                start = self._slots[e.history(t)]
                logits = parameters_P[start : start + BRANCHES[t]]
                row[t] = logits.log_softmax(0)[e.tokens[t]]
            rows.append(torch.stack(row))
        return torch.stack(rows)

    def environment(self) -> torch.Tensor:
        """p(observation | first action, z) of each episode: what does not depend on the policy."""
        chance = [self._observation_probability[e.variant, e.tokens[1]] for e in self.episodes]
        return torch.stack([p if e.tokens[2] else 1 - p for p, e in zip(chance, self.episodes, strict=True)])

    @cached_property
    def given_variant(self) -> torch.Tensor:
        """p(episode | z)."""
        return self.log_policy(self.parameters_P).sum(-1).exp() * self.environment()

    @cached_property
    def variant_probability(self) -> torch.Tensor:
        """p(z) of each episode's variant."""
        return self._variant_probability[torch.tensor([e.variant for e in self.episodes])]

    @cached_property
    def probability(self) -> torch.Tensor:
        """p(episode), the variant included."""
        return self.given_variant * self.variant_probability

    @cached_property
    def scores(self) -> torch.Tensor:
        """Score grad log pi of each action; 0 on other tokens."""
        return torch.autograd.functional.jacobian(self.log_policy, self.parameters_P)

    @cached_property
    def true_gradient(self) -> torch.Tensor:
        """The gradient of the expected reward, by differentiating the expectation itself."""
        parameters_P = self.parameters_P.clone().requires_grad_()
        probability = self.log_policy(parameters_P).sum(-1).exp() * self.environment() * self.variant_probability
        (gradient_P,) = torch.autograd.grad((probability * self.rewards).sum(), parameters_P)
        return gradient_P

    def exact_values(self, *, sees_variant: bool, looks_ahead: int = 0) -> torch.Tensor:
        """E[R | history] or E[R | history, z] before each action, NaN on other tokens.

        `looks_ahead` makes an inadmissible critic that has seen that many tokens from the action on.
        """
        totals: dict[tuple[int | None, History], tuple[float, float]] = {}
        for e, p in zip(self.episodes, self.probability.tolist(), strict=True):
            for t in range(6):
                key = (e.variant if sees_variant else None, e.tokens[:t])
                mass, weighted = totals.get(key, (0.0, 0.0))
                totals[key] = mass + p, weighted + p * e.reward
        return self._column(
            lambda e, t: totals[e.variant if sees_variant else None, e.tokens[: t + looks_ahead]], divide=True
        )

    def arbitrary_values(self, seed: int, *, sees_variant: bool) -> torch.Tensor:
        """A wrong critic: any function of the history (and z)."""
        generator = torch.Generator().manual_seed(seed)
        known: dict[tuple[int | None, History], float] = {}
        for e in self.episodes:
            for t in ACTIONS:
                key = (e.variant if sees_variant else None, e.history(t))
                if key not in known:
                    known[key] = float(torch.randn((), dtype=F64, generator=generator))
        return self._column(lambda e, t: (1.0, known[e.variant if sees_variant else None, e.history(t)]), divide=False)

    def _column(self, lookup, *, divide: bool) -> torch.Tensor:
        column = torch.full((len(self.episodes), 5), NAN, dtype=F64)
        for i, e in enumerate(self.episodes):
            for t in ACTIONS:
                mass, amount = lookup(e, t)
                column[i, t] = amount / mass if divide else amount
        return column

    def gae(self, values_ET: torch.Tensor, gae_lambda: float = 1.0) -> torch.Tensor:
        """The package's GAE of every episode."""
        rewards_ET = terminal_rewards(self.rewards, self.action_mask_ET)
        factors = {"gamma": 1.0, "gae_lambda": gae_lambda, "value_target_lambda": 1.0}
        return package_gae(rewards_ET, values_ET, self.action_mask_ET, **factors)[0]

    def gradients(self, advantages_ET: torch.Tensor) -> torch.Tensor:
        """The policy-gradient estimate that each episode gives: sum over actions of A grad log pi."""
        return torch.einsum("et,etp->ep", advantages_ET, self.scores)

    @cached_property
    def groups(self) -> torch.Tensor:
        """Index pairs of all groups of two episodes of one variant."""
        half = len(self.episodes) // 2
        pairs = torch.cartesian_prod(torch.arange(half), torch.arange(half))
        return torch.cat([pairs, pairs + half])

    @cached_property
    def group_probability(self) -> torch.Tensor:
        """p(z) p(first | z) p(second | z)."""
        first, second = self.groups.T
        return self.variant_probability[first] * self.given_variant[first] * self.given_variant[second]


def moments(estimates_NP: torch.Tensor, probability_N: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Exact mean of an estimator and the trace of its covariance."""
    mean_P = probability_N @ estimates_NP
    return mean_P, float(probability_N @ (estimates_NP - mean_P).square().sum(-1))
