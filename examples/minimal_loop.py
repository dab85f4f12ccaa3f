"""The whole method in one file: rollouts, privileged critic, Tether, replay, DPPO. The executable specification.

    python examples/minimal_loop.py --arm tether --steps 30

It shares with the package only the seeds, the models with their scoring, the numerics, the tasks and the
engine's sampler; loop, credit and updates are written out here. On the same seeds it gives the losses of
`lecritique train demo` to the last bit (float64; tests/integration/test_minimal_loop.py).
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lecritique.config.losses import Bce
from lecritique.core.ids import RolloutId
from lecritique.core.rollout import GenerateRequest, Sampling
from lecritique.core.seeds import derive_seed
from lecritique.core.task import Task
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import load_causal_lm
from lecritique.models.scoring import TokenRow, action_logprobs, action_value_outputs, in_micro_batches, values
from lecritique.models.value_model import ValueModel
from lecritique.numerics.alignment import insert_context, spread_over_context
from lecritique.numerics.baselines import group_baselines
from lecritique.numerics.gae import gae, terminal_rewards
from lecritique.numerics.policy_losses import dppo_loss, token_mean
from lecritique.numerics.tether import TetherSums, tether_advantages, tether_ema, tether_fit, tether_pairs, tether_sums
from lecritique.rollout.sampler import Sampler
from lecritique.tasks.registry import load_environment
from lecritique.tasks.stream import DataStream


@dataclass(frozen=True)
class Settings:
    """The demo's settings; `arm` is mean, leave_one_out, value, pvf or tether."""

    arm: str = "tether"
    steps: int = 30
    seed: int = 0
    batch: int = 128
    group: int = 4
    temperature: float = 2.0
    turn_tokens: int = 20
    policy_lr: float = 1e-4
    critic_lr: float = 1e-3
    warmup_updates: int = 20
    decay: float = 0.95
    uses: int = 2
    dtype: torch.dtype = torch.float32
    micro_tokens: int = 2048


@dataclass
class Episode:
    """One rollout, growing turn by turn, then its credit. Arrays are per token."""

    rollout_id: RolloutId
    task: Task
    ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    turns: int = 0
    reward: float | None = None
    values = advantages = targets = None  # arrays once scored and credited

    def append(self, ids: np.ndarray, logprobs: np.ndarray | None) -> None:
        """Add tokens: sampled ones with their log-probs, or given ones."""
        sampled = logprobs is not None
        self.ids = np.concatenate([self.ids, ids])
        self.mask = np.concatenate([self.mask, np.full(len(ids), sampled)])
        self.logprobs = np.concatenate([self.logprobs, logprobs if sampled else np.zeros(len(ids))])


def play(environment, renderer: ChatRenderer, sampler: Sampler, groups, s: Settings) -> list[Episode]:
    """Play `s.group` episodes of every group; no sampled token is ever encoded again."""
    episodes, players, every, sampling = {}, {}, [], Sampling(temperature=s.temperature)

    def ask(episode: Episode) -> None:
        group, member = episode.rollout_id
        request_id = f"{episode.rollout_id}.{episode.turns}"
        episodes[request_id] = episode
        turn = {"row": group.row, "attempt": group.attempt, "member": member, "turn": episode.turns}
        limits = {"max_new_tokens": s.turn_tokens, "stop_ids": renderer.stop_ids, "sampling": sampling}
        ids = {"request_id": request_id, "sequence_id": episode.rollout_id, "token_ids": episode.ids}
        sampler.add(GenerateRequest(**ids, **limits, seed=derive_seed(s.seed, "sample", **turn)))

    for group in groups:
        task = environment.task(group.row)
        for member in range(s.group):
            nothing = np.zeros(0, dtype=np.int64)
            episode = Episode(RolloutId(group, member), task, nothing, nothing.astype(bool), np.zeros(0))
            episode.append(renderer.render_prompt(task.messages), None)
            players[episode.rollout_id] = environment.start(task)
            every.append(episode)
            ask(episode)
    while sampler.busy:
        done = {completion.request_id: completion for completion in sampler.chunk()}
        for request_id in [key for key in episodes if key in done]:
            episode, completion = episodes.pop(request_id), done[request_id]
            episode.append(completion.token_ids, completion.logprobs)
            episode.turns += 1
            reply = players[episode.rollout_id].reply(renderer.decode(completion.token_ids))
            cut = completion.finish_reason == "length"
            episode.reward = environment.reward_range[0] if cut and reply.reward is None else reply.reward
            if reply.messages and not cut:
                episode.append(renderer.extend(episode.ids, reply.messages)[len(episode.ids) :], None)
            if episode.reward is None:
                ask(episode)
    return every


def critic_row(episode: Episode, renderer: ChatRenderer, privileged: bool) -> TokenRow:
    """What the critic reads: the policy's own tokens, with the reference answer in front if it is privileged."""
    if not privileged:
        return TokenRow(token_ids=episode.ids, mask=episode.mask)
    text = f"Answer: {episode.task.reference.answer}."
    put = renderer.context_insertion(episode.ids, episode.task.messages, text, "system_prefix")
    return TokenRow(
        token_ids=insert_context(episode.ids, put.position, put.token_ids),
        mask=spread_over_context(episode.mask, put.position, len(put)),
    )


def credit(episodes: list[Episode], s: Settings, arm: str, rho: float) -> TetherSums:
    """Fill in advantages and targets; returns the sums of the Tether fit (LC eq. 3, 12, 15)."""
    sums = TetherSums()
    for start in range(0, len(episodes), s.group):
        group = episodes[start : start + s.group]
        baselines = group_baselines(
            torch.tensor([e.reward for e in group], dtype=torch.float64), "mean" if arm == "mean" else "leave_one_out"
        ).tolist()
        for e, baseline in zip(group, baselines, strict=True):
            mask, values_T = torch.from_numpy(e.mask), torch.from_numpy(e.values)
            rewards_T = terminal_rewards(torch.tensor(e.reward, dtype=torch.float64), mask)
            gae_T, targets_T = gae(rewards_T, values_T, mask, gamma=1.0, gae_lambda=1.0, value_target_lambda=1.0)
            sums = sums.merge(tether_sums(*tether_pairs(gae_T, values_T, baseline, mask)))
            if arm in ("value", "pvf"):
                advantages_T = gae_T
            elif arm == "tether":
                advantages_T = tether_advantages(gae_T, values_T, baseline, rho, action_mask_T=mask)
            else:
                advantages_T = (e.reward - baseline) * mask.double()
            e.advantages, e.targets = advantages_T.numpy(), targets_T.numpy()
    return sums


def update(model, optimizer: torch.optim.Optimizer, rows: list[TokenRow], token_losses, s: Settings) -> float:
    """One optimizer step, token mean over the whole batch whatever the micro-batches; returns the loss."""
    action_tokens, total = sum(int(row.mask.sum()) for row in rows), 0.0
    optimizer.zero_grad()
    for micro in in_micro_batches(model, rows, max_tokens=s.micro_tokens):
        loss_N = token_losses(micro)
        loss = token_mean(loss_N, torch.ones_like(loss_N, dtype=torch.bool), action_tokens=action_tokens)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def policy_update(policy, optimizer: torch.optim.Optimizer, episodes: list[Episode], s: Settings) -> float:
    """One DPPO step (LC's default loss)."""
    sampled, advantages = [e.logprobs[e.mask] for e in episodes], [e.advantages[e.mask] for e in episodes]

    def token_losses(micro) -> torch.Tensor:
        lp_N = action_logprobs(policy, micro, temperature=s.temperature)
        return dppo_loss(lp_N, micro.gathered(sampled, lp_N.dtype), micro.gathered(advantages, lp_N.dtype)).loss_N

    return update(policy, optimizer, [TokenRow(token_ids=e.ids, mask=e.mask) for e in episodes], token_losses, s)


def critic_update(critic: ValueModel, optimizer: torch.optim.Optimizer, batch: list, s: Settings) -> float:
    """One cross-entropy step towards frozen targets."""
    targets = [target for _, target in batch]

    def token_losses(micro) -> torch.Tensor:
        outputs_NA = action_value_outputs(critic, micro)
        return critic.losses_of(outputs_NA, micro.gathered(targets, outputs_NA.dtype))

    return update(critic, optimizer, [row for row, _ in batch], token_losses, s)


def train(s: Settings, options: dict) -> Iterator[dict[str, float]]:
    """The loop; yields the figures of each step."""
    environment = load_environment("sudoku", options)
    language = load_causal_lm("tiny", dtype=s.dtype, packed=None)
    policy, renderer = language.model, ChatRenderer(language.tokenizer)
    critic = ValueModel.from_policy(policy, Bce(), seed=derive_seed(s.seed, "value_head"))
    sampler = Sampler(policy, max_rows=128, chunk_tokens=32, prefill_tokens=s.micro_tokens)
    policy_adam = torch.optim.AdamW(policy.parameters(), lr=s.policy_lr, weight_decay=0.01, fused=True)
    critic_adam = torch.optim.AdamW(critic.parameters(), lr=s.critic_lr, weight_decay=0.01, fused=True)
    stream = DataStream(len(environment), derive_seed(s.seed, "data"))
    rng = np.random.default_rng(derive_seed(s.seed, "replay"))
    replay: OrderedDict[RolloutId, list] = OrderedDict()
    uses_critic, groups = s.arm in ("value", "pvf", "tether"), s.batch // s.group
    rho, updates, sampling = 0.0, 0, False
    for step in range(s.steps):
        sampler.forget_cache()
        episodes = play(environment, renderer, sampler, stream.groups(step * groups, groups), s)
        rows = [critic_row(e, renderer, s.arm == "pvf") for e in episodes]
        scored = values(critic, rows, max_tokens=s.micro_tokens) if uses_critic else [0.0] * len(rows)
        for e, values_N in zip(episodes, scored, strict=True):
            e.values = np.zeros(len(e.ids))
            e.values[e.mask] = values_N

        warm = not uses_critic or updates >= s.warmup_updates
        sums = credit(episodes, s, s.arm if warm else "leave_one_out", rho)
        figures = {"reward": float(np.mean([e.reward for e in episodes])), "rho": rho}
        if s.arm == "tether" and warm:
            rho = tether_ema(rho, tether_fit(sums), decay=s.decay)
        figures["policy_loss"] = policy_update(policy, policy_adam, episodes, s)
        if not uses_critic:
            yield figures
            continue
        # Replay: first in, first out; at most `uses` draws of each; filling until two batches are held.
        capacity = s.uses * s.batch
        wanted = s.batch if sampling and len(replay) >= s.batch else capacity - len(replay)
        for e, row in list(zip(episodes, rows, strict=True))[:wanted]:
            replay[e.rollout_id] = [(row, e.targets[e.mask]), 0]
            if len(replay) > capacity:
                replay.popitem(last=False)
        sampling = sampling or len(replay) >= capacity
        if sampling and len(replay) >= s.batch:
            keys = list(replay)
            chosen = [keys[i] for i in np.sort(rng.choice(len(keys), size=s.batch, replace=False))]
            figures["value_loss"] = critic_update(critic, critic_adam, [replay[key][0] for key in chosen], s)
            updates += 1
            for key in chosen:
                replay[key][1] += 1
                if replay[key][1] >= s.uses:
                    del replay[key]
            sampling = len(replay) >= s.batch
        yield figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", default="tether", choices=("mean", "leave_one_out", "value", "pvf", "tether"))
    for name, default in (("--steps", 30), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    settings = Settings(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    for number, row in enumerate(train(settings, {"min_empty": 10, "max_empty": 10, "rows": 2000, "seed": 0})):
        print(f"step {number:3d}  " + "  ".join(f"{key} {value:.4f}" for key, value in row.items()), flush=True)
