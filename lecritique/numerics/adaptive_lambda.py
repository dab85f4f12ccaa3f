"""A lambda that adapts to how accurate the critic is measured to be. Ours; no estimator uses it by default.

The trade-off. With lambda = 1 an action is judged by the return that followed: no bias, but all the noise of what
came later. With lambda = 0 it is judged by the next value: no noise, but all the error of the critic. Write V = V* + e
with V* the exact value, gamma = 1, and let n action tokens follow token t. As an estimate of Q*(h_t, token t) the
lambda-return G_t is off by, apart from a term without lambda,

    sum_{l=1..n} lambda^l m_{t+l}  +  (1 - lambda) sum_{l=1..n} lambda^(l-1) e_{t+l}

m are the increments of V*, of mean 0 whatever came before: variance. e is what bootstrapping brings in: bias. (The
critic's error at t itself is a function of h_t: it moves the baseline and costs no bias.) A weight of x = lambda^n
stays on the return and 1 - x on the values. A critic's errors along one response are alike, so take one error e for
all the values, and the return's noise as one independent error of variance s^2. Then

    risk(x) = x^2 s^2 + (1 - x)^2 bias_weight e^2

is least at x = bias_weight e^2 / (bias_weight e^2 + s^2): each is weighted by the other's error. This is exact for a
critic that is constant along the response. With the average n = (T - 1) / 2 this gives `adaptive_lambda`.

The measurement. The critic's mean squared error against returns is e^2 + s^2, and does not say which is which.
Siblings do: they share the task and differ in what was sampled, so the variance of returns within groups is the noise
at the first token, whatever the critic. It falls to 0 at the last token; if evenly, s^2 is half of it at an average
token. `critic_error_share` is e^2 / (e^2 + s^2) on that account. Where outcomes are decided late, s^2 is larger than
that, the share too high and lambda too near 1: wrong towards the unbiased side.

Lambda must not be chosen from the returns that it then credits: measure on earlier batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lecritique.core.metrics import Mean
from lecritique.numerics.precision import widen


def within_group_variance(returns_K: Tensor) -> Mean:
    """The variance of returns among siblings, pooled over groups; merges over batches.

        s_0^2 = sum over groups of sum_i (R_i - mean R)^2 / sum over groups of (K - 1)

    Unbiased for the variance of the return given the task. A group with fewer than two valid returns counts nothing.

    Args:
        returns_K: [..., K], reward units, NaN where invalid.

    Returns:
        total squared deviation over degrees of freedom; its value is NaN of nothing.

    Raises:
        Nothing.

    Source: ours; see the module.
    """
    returns = widen(returns_K.detach()).double()
    valid = ~returns.isnan()
    zero = torch.zeros_like(returns)
    count = valid.sum(-1, keepdim=True)
    mean = torch.where(valid, returns, zero).sum(-1, keepdim=True) / count.clamp(min=1)
    deviations = torch.where(valid, returns - mean, zero)
    return Mean(float(deviations.square().sum()), float((count - 1).clamp(min=0).sum()))


def critic_error_share(critic_mse: float, return_variance: float, *, open_share: float = 0.5) -> float:
    """How much of the critic's squared error against returns is its own, and not noise that no critic can know.

        share = clip(1 - open_share s_0^2 / MSE, 0, 1)

    MSE = (1 - EV) Var(G) + bias^2. Rises with the MSE, falls with the noise. 0 for a critic whose error is all noise,
    or that makes none; towards 1 as its error outgrows the noise; exactly 1 where siblings always end alike.

    Args:
        critic_mse: mean of (G - V)^2 over action tokens, reward units squared.
        return_variance: s_0^2, `within_group_variance`, reward units squared.
        open_share: part of s_0^2 that is still open at an average token, in [0, 1]; 0.5 if it is settled evenly.

    Returns:
        in [0, 1]; NaN when an input is NaN (nothing measured yet).

    Raises:
        ValueError: a negative error or variance, or an open_share outside [0, 1].

    Source: ours; see the module.
    """
    if critic_mse < 0.0 or return_variance < 0.0 or not 0.0 <= open_share <= 1.0:
        raise ValueError(
            f"critic_mse and return_variance must be at least 0 and open_share in [0, 1], "
            f"got {critic_mse}, {return_variance} and {open_share}"
        )
    if critic_mse == 0.0:
        return 0.0
    share = 1.0 - open_share * return_variance / critic_mse
    return share if share != share else min(max(share, 0.0), 1.0)


def adaptive_lambda(error_share: float, length: float, *, bias_weight: float = 1.0) -> float:
    """The lambda that balances the critic's error against the noise of the return over responses of `length` tokens.

        x = bias_weight share / (bias_weight share + 1 - share)
        lambda = x^(2 / (length - 1))

    x is the weight that stays on the return at an average token: e^2 weighs against s^2. Share 0 (a perfect critic)
    gives lambda 0, share 1 (a useless one) lambda 1; it rises with the share, with the length and with bias_weight,
    which says how much worse bias is than variance: 1 minimises the mean squared error of one token's credit; more is
    right when many tokens average the noise out and the bias stays. Nothing measured (NaN) gives lambda 1, unbiased.

    Args:
        error_share: in [0, 1] or NaN, see `critic_error_share`.
        length: action tokens of a typical response, at least 1; up to 3 count as 3 (one token follows, at least).
        bias_weight: above 0.

    Returns:
        in [0, 1].

    Raises:
        ValueError: an argument outside its range.

    Source: ours; see the module.
    """
    if not (length >= 1.0 and bias_weight > 0.0):
        raise ValueError(f"length must be at least 1 and bias_weight above 0, got {length} and {bias_weight}")
    if error_share != error_share:
        return 1.0
    if not 0.0 <= error_share <= 1.0:
        raise ValueError(f"error_share must be in [0, 1], got {error_share}")
    kept = bias_weight * error_share / (bias_weight * error_share + (1.0 - error_share))
    return float(kept ** (2.0 / max(length - 1.0, 2.0)))
