"""Random models and trajectories that are small enough for unit tests, and loops that spell out what is meant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import CreditedTrajectory, Trajectory

VOCABULARY = 24


def small_policy(seed: int = 0, *, dtype: torch.dtype = torch.float64, tied: bool = True, layers: int = 2):
    """A random Qwen3 with weights so large that its distributions are far from uniform."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.35,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).to(dtype).eval()


def rollout_id(member: int = 0, *, row: int = 0, attempt: int = 0) -> RolloutId:
    """Member of a group."""
    return RolloutId(GroupId(row, attempt), member)


def trajectory(
    mask: Sequence[int],
    *,
    seed: int = 0,
    episode_return: float = 1.0,
    member: int = 0,
    row: int = 0,
    policy: torch.nn.Module | None = None,
    version: int = 0,
) -> Trajectory:
    """Random ids with the given action mask; sampler log-probs are those of `policy`, or about -1."""
    rng = np.random.default_rng([seed, row, member, len(mask)])
    ids = rng.integers(0, VOCABULARY, len(mask))
    on = np.array(mask, dtype=bool)
    lq = rng.uniform(-1.5, -0.5, len(mask)) if policy is None else literal_logprobs(policy, ids)
    return Trajectory(
        rollout_id=rollout_id(member, row=row),
        token_ids=ids,
        action_mask=on,
        sampler_logprobs=np.where(on, lq, 0.0),
        turn_index=np.zeros(len(mask), dtype=np.int64),
        policy_version=np.where(on, version, -1),
        episode_return=episode_return,
        truncated=False,
    )


def credited(of: Trajectory, *, advantages: Sequence[float] | None = None, seed: int = 0) -> CreditedTrajectory:
    """Random advantages on the action tokens, junk off them."""
    rng = np.random.default_rng([seed, of.rollout_id.member, len(of)])
    column = rng.normal(size=len(of)) if advantages is None else np.array(advantages)
    return CreditedTrajectory(
        trajectory=of,
        advantages=np.where(of.action_mask, column, 1e6),
        value_targets=np.where(of.action_mask, of.episode_return, np.nan),
        estimator="test",
    )


def literal_logprobs(policy: torch.nn.Module, token_ids: Sequence[int], *, temperature: float = 1.0) -> np.ndarray:
    """Log p(token t | tokens < t) by a full softmax over the logits of the whole sequence, alone; 0 at t = 0."""
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    everything = torch.log_softmax(logits / temperature, dim=-1)
    out = [0.0] + [float(everything[t - 1, int(token_ids[t])]) for t in range(1, len(token_ids))]
    return np.array(out)
