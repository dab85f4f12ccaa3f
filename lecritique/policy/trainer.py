"""The policy trainer: optimizer steps on a policy batch, each on a complete minibatch with global denominators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.losses import Opsd, PolicyLoss
from lecritique.config.schema import PolicySection
from lecritique.config.teachers import NoModulation
from lecritique.core.errors import CheckpointError, ConfigurationError, DivergenceError
from lecritique.core.ids import RolloutId
from lecritique.core.metrics import Mean
from lecritique.core.spending import Reading
from lecritique.core.trajectory import Judged, PolicyBatch
from lecritique.core.weights import WeightManifest
from lecritique.models.adapters import frozen_digest, own_weights
from lecritique.models.optimizer import Optimizer
from lecritique.models.ranks import Alone, Ranks
from lecritique.models.restoring import require_same_base, restore_weights
from lecritique.models.scoring import (
    action_logprobs,
    in_micro_batches,
    in_paired_micro_batches,
    token_row,
)
from lecritique.models.weights import WeightStore
from lecritique.policy.batches import Minibatch, minibatches, whitened, with_old_logprobs
from lecritique.policy.losses import divergences, reads_old_logprobs, reduced, rollout_weights, token_losses
from lecritique.policy.modulation import Modulator
from lecritique.policy.seen import Seen
from lecritique.policy.teacher import SelfTeacher


class PolicyTrainer:
    """Owns the policy that learns; a version is published after each batch. Version n was trained on n batches.

    Args:
        model: the policy.
        config: loss, modulation, minibatches, optimizer.
        store: where versions go.
        temperature: divides logits.
        max_tokens: padded tokens of one forward pass.
        teacher: for a modulation or a loss that reads one.
        ranks: the processes that train together; `model` may be in shards on them.

    Raises:
        ConfigurationError: the loss `opsd` with an output layer that has a bias.
    """

    def __init__(
        self,
        model: Any,
        config: PolicySection,
        store: WeightStore,
        *,
        temperature: float,
        max_tokens: int,
        teacher: SelfTeacher | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        modulates = not isinstance(config.modulation, NoModulation)
        if teacher is None and (modulates or isinstance(config.loss, Opsd)):
            raise ValueError("this modulation or loss needs a teacher")
        if isinstance(config.loss, Opsd) and getattr(model.get_output_embeddings(), "bias", None) is not None:
            raise ConfigurationError(
                "'policy.loss.type' = 'opsd' knows output layers without bias only, and that of 'model.name' has one."
            )
        self.model = model
        self._config = config
        self._store = store
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._ranks = ranks or Alone()
        self._optimizer = Optimizer(model.parameters(), config.optimizer)
        self._version = 0
        self._published: WeightManifest | None = None
        self.teacher = teacher
        self.read, self.trained = Reading(), Reading()
        self.judged: Mapping[tuple[RolloutId, int], Judged] = {}
        """What the teacher made of the newest batch, by rollout and segment; nothing without a modulation."""
        self._modulates = modulates
        # By what the student says now, and not by what it said before the update.
        self._by_current = (
            not isinstance(config.modulation, NoModulation) and config.modulation.denominator == "current"
        )
        # Whether advantages are modulated at each forward pass instead of once.
        self._late = modulates and (self._by_current or config.teacher.rescore)
        self._reads_old = reads_old_logprobs(config.loss) or (modulates and not self._by_current)

    @property
    def minibatch_size(self) -> int | None:
        """Rollouts of an optimizer step, None for all of the batch."""
        return self._config.minibatch_size

    @property
    def version(self) -> int:
        """Policy batches trained on so far."""
        return self._version

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._optimizer.steps

    def publish(self) -> WeightManifest:
        """Put the weights, an adapter's alone, into the store; the same version again is the one that is there."""
        if self._published is None or self._published.version != self._version:
            self._published = self._store.put("policy", own_weights(self.model))
        return self._published

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and version; the tensors are those in use.

        Of a model with an adapter these are the adapter's, and `frozen` names the weights under it.
        """
        return {
            "weights": own_weights(self.model),
            "frozen": frozen_digest(self.model),
            "optimizer": self._optimizer.state(),
            "version": self._version,
            "teacher": self.teacher.state() if self.teacher else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the next `publish` goes on with its version.

        Raises:
            CheckpointError: it is of another policy.
        """
        saved = state.get("teacher")
        if (saved is None) != (self.teacher is None):
            raise CheckpointError("the checkpoint and this run are not both with a teacher or both without")
        if self.teacher is not None:
            self.teacher.restore(saved)
        require_same_base(self.model, state.get("frozen"), role="policy")
        restore_weights(self.model, state["weights"], role="policy")
        self._optimizer.restore(state["optimizer"])
        self._version = int(state["version"])
        self._store.go_on_from("policy", self._version)
        self._published = None

    def step(self, batch: PolicyBatch) -> Mapping[str, float]:
        """Train on one policy batch: `epochs` times, minibatch by minibatch; with nothing to train on the loss is 0.

        Log-probs from before the update are fixed through all optimizer steps, and so are the advantages, once
        modulated and whitened; what is modulated by the current policy or a moving teacher is at each forward pass.

        Raises:
            DataError: a sequence that is too long for the teacher.
            DivergenceError: an advantage, log-prob, loss or gradient is not finite; the weights are left as the last
                good optimizer step made them, and no version counts.
        """
        if not batch.action_tokens:
            return {"policy_loss": 0.0}
        everything = np.concatenate(_columns(batch, "advantages"))
        if not np.isfinite(everything).all():
            raise DivergenceError(f"an advantage of policy step {self.steps + 1} is not finite.")
        ages = batch.ages
        seen, losses, norm = Seen(), Mean(), 0.0
        modulator = Modulator(self._config.modulation, version=self._version)
        batch = self._prepared(batch, modulator)
        for _ in range(self._config.epochs):
            for part in minibatches(batch, self._config.minibatch_size or len(batch.members)):
                loss, norm = self._optimizer_step(part, seen, modulator)
                losses = losses.merge(Mean(loss, 1))
        self._version += 1
        if self.teacher is not None:
            self.teacher.after_batch(self.model, version=self._version)
        if self._late:
            modulator.add_up(self._ranks)
        return {
            "policy_loss": losses.value(),
            **seen.together(self._ranks).metrics(),
            **modulator.metrics(),
            "policy_grad_norm": norm,
            "policy_learning_rate": self._optimizer.learning_rate,
            **_advantage_metrics(self._config.loss, everything),
            "staleness_max": float(max(ages)),
        }

    def _prepared(self, batch: PolicyBatch, modulator: Modulator) -> PolicyBatch:
        """The batch with everything that stays fixed through the update: lp_old, teacher scores, advantages."""
        config = self._config
        if self._reads_old and any(member.old_logprobs is None for member in batch.members):
            batch = self.scored(batch)
        if self._modulates and not config.teacher.rescore:
            assert self.teacher is not None
            batch = self.teacher.scored(batch)
        if self._modulates and not self._late:
            # The sign test is on the raw advantage: before any whitening.
            batch = modulator.over(batch)
        self.judged = self._judged(batch) if self._modulates else {}
        return whitened(batch) if config.whiten else batch

    def _judged(self, batch: PolicyBatch) -> dict[tuple[RolloutId, int], Judged]:
        return {
            (member.trajectory.rollout_id, member.trajectory.segment_index): Judged(
                old_logprobs=member.old_logprobs,
                teacher_logprobs=member.teacher_logprobs,
                modulated_advantages=None if self._late else member.advantages,
            )
            for member in batch.members
        }

    def scored(self, batch: PolicyBatch) -> PolicyBatch:
        """The batch with the log-probs of the policy as it is now, lp_old of an update that starts from here.

        Raises:
            DivergenceError: one of them is not finite.
        """
        rows = [token_row(member.trajectory) for member in batch.members]
        self.read.add(row.read_tokens for row in rows)
        columns = self._ranks.logprobs(self.model, rows, temperature=self._temperature, max_tokens=self._max_tokens)
        if not all(np.isfinite(column).all() for column in columns):
            raise DivergenceError(f"a log-prob before policy step {self.steps + 1} is not finite.")
        return with_old_logprobs(batch, columns)

    def _optimizer_step(self, part: Minibatch, seen: Seen, modulator: Modulator) -> tuple[float, float]:
        """One optimizer step; its loss, and its gradient norm before clipping."""
        if isinstance(self._config.loss, Opsd):
            losses = self._distilled(part.batch, self._config.loss, seen)
        else:
            losses = self._surrogate(part.batch, seen, modulator)
        total = 0.0
        self._optimizer.zero_grad()
        for of_micro_batch in losses:
            loss = of_micro_batch * part.share
            torch.autograd.backward(loss)
            total += loss.item()
        (total,) = self._ranks.sums([total])
        if not np.isfinite(total):
            raise DivergenceError(f"the policy loss of step {self.steps + 1} is {total}.")
        norm = self._optimizer.step("policy")
        if self.teacher is not None:
            self.teacher.after_optimizer_step(self.model)
        return total, norm

    def _surrogate(self, batch: PolicyBatch, seen: Seen, modulator: Modulator) -> Iterator[torch.Tensor]:
        """The loss of each micro-batch of a minibatch, by the log-probs of the sampled tokens."""
        config = self._config.loss
        if self._late and self._config.teacher.rescore:
            assert self.teacher is not None
            batch = self.teacher.scored(batch)
        trajectories = [member.trajectory for member in batch.members]
        sampled = [trajectory.sampler_logprobs[trajectory.action_mask] for trajectory in trajectories]
        advantages = _columns(batch, "advantages")
        old = _columns(batch, "old_logprobs") if self._reads_old else None
        teacher = _columns(batch, "teacher_logprobs") if self._late else None
        rows = [token_row(trajectory) for trajectory in trajectories]
        self.trained.add(row.read_tokens for row in rows)
        split = self._ranks.micro_batches
        for micro in in_micro_batches(self.model, rows, max_tokens=self._max_tokens, split=split):
            lp_N = self._ranks.run(self.model, action_logprobs, micro, temperature=self._temperature)
            lq_N = micro.gathered(sampled, lp_N.dtype)
            old_N = None if old is None else micro.gathered(old, lp_N.dtype)
            advantages_N = micro.gathered(advantages, lp_N.dtype)
            if teacher is not None:
                student_N = lp_N.detach() if self._by_current or old_N is None else old_N
                advantages_N = modulator.modulated(advantages_N, micro.gathered(teacher, lp_N.dtype), student_N)
            tokens = token_losses(config, lp_N, lq_N, advantages_N, old_N=old_N)
            yield reduced(config, tokens.loss_N, micro, batch)
            seen.add(tokens, lp_N.detach(), lq_N, old_N, rollout_weights(config, old_N, lq_N))

    def _distilled(self, batch: PolicyBatch, config: Opsd, seen: Seen) -> Iterator[torch.Tensor]:
        """The loss of each micro-batch of a minibatch, by the distributions of student and teacher."""
        assert self.teacher is not None
        rows, told_rows = [token_row(member.trajectory) for member in batch.members], self.teacher.rows(batch.members)
        self.trained.add(row.read_tokens for row in rows)
        self.teacher.read.add(row.read_tokens for row in told_rows)
        split = self._ranks.micro_batches
        pairs = in_paired_micro_batches(self.model, rows, told_rows, max_tokens=self._max_tokens, split=split)
        for read, told in pairs:
            own = partial(divergences, config)
            loss_N = self._ranks.run(self.model, own, self.teacher.model, read, told, temperature=self._temperature)
            yield reduced(config, loss_N, read, batch)
            seen.add_divergence(loss_N.detach())


def _advantage_metrics(loss: PolicyLoss, advantages: NDArray[np.float64]) -> dict[str, float]:
    if isinstance(loss, Opsd):
        return {}
    return {"advantage_mean": float(advantages.mean()), "advantage_std": float(advantages.std())}


def _columns(batch: PolicyBatch, name: str) -> list[NDArray[np.float64]]:
    """A per-token column of each member, on its action tokens.

    Raises:
        ValueError: a member without it.
    """
    columns = []
    for member in batch.members:
        column: NDArray[np.float64] | None = getattr(member, name)
        if column is None:
            raise ValueError(f"rollout {member.trajectory.rollout_id} has no {name}")
        columns.append(column[member.trajectory.action_mask])
    return columns
