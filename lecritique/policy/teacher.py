"""The self-teacher: a copy of the policy that reads what the policy does not, and judges the tokens it sampled.

It is copied from the student's weights in memory, never loaded by name, and only ever reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.config.teachers import AnyTeacher, EmaTeacher, SnapshotTeacher
from lecritique.core.errors import CheckpointError, DataError, DivergenceError
from lecritique.core.spending import Reading
from lecritique.core.trajectory import CreditedTrajectory, PolicyBatch, Trajectory
from lecritique.models.adapters import copied, has_adapter, is_own, load_own_weights, own_weights
from lecritique.models.ranks import whole
from lecritique.models.restoring import restore_weights
from lecritique.models.scoring import TokenRow, logprobs
from lecritique.policy.batches import with_teacher_logprobs


class SelfTeacher:
    """Follows the student in the configured way and scores sampled tokens.

    Args:
        student: the policy, whose weights it starts from.
        config: how it follows.
        temperature: divides logits, the student's.
        max_tokens: padded tokens of one forward pass.
        context_length: longest sequence that it can read, tokens.
    """

    def __init__(
        self, student: Any, config: AnyTeacher, *, temperature: float, max_tokens: int, context_length: int
    ) -> None:
        self.model = copied(student).requires_grad_(False)
        # What is frozen under an adapter is the student's too and never moves: only adapters are averaged or copied.
        adapter = has_adapter(student)
        self._moving = {name: own for name, own in self.model.named_parameters() if not adapter or is_own(name)}
        self._config = config
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._context_length = context_length
        self.read = Reading()
        # A running mean moves by less than a half-precision weight can say: it is kept in float32 or wider beside it.
        self._means = {name: _wide(weight) for name, weight in self._narrow_weights()}

    @torch.no_grad()
    def after_optimizer_step(self, student: Any) -> None:
        """Move with the student: theta_bar <- decay theta_bar + (1 - decay) theta, in place; other kinds stay."""
        if not isinstance(self._config, EmaTeacher):
            return
        decay, of_student = self._config.decay, dict(student.named_parameters())
        for name, own in self._moving.items():
            mean = self._means.get(name, own)
            mean.mul_(decay).add_(whole(of_student[name].detach()).to(mean.dtype), alpha=1.0 - decay)
            if mean is not own:
                own.copy_(mean)

    def after_batch(self, student: Any, *, version: int) -> None:
        """A snapshot is taken again when the student's version is a multiple of `refresh_every`."""
        if isinstance(self._config, SnapshotTeacher) and version % self._config.refresh_every == 0:
            load_own_weights(self.model, {name: whole(tensor) for name, tensor in own_weights(student).items()})

    def rows(self, members: Sequence[CreditedTrajectory]) -> list[TokenRow]:
        """What it reads of each trajectory.

        Raises:
            DataError: a sequence that with the teacher's prompt is over the model's limit.
        """
        rows = [teacher_row(member) for member in members]
        for member, row in zip(members, rows, strict=True):
            if row.read_tokens > self._context_length:
                raise DataError(
                    f"rollout {member.trajectory.rollout_id} has {row.read_tokens} tokens with the teacher's prompt, "
                    f"over the model's limit of {self._context_length}; lower 'sampling.max_total_tokens'."
                )
        return rows

    def scored(self, batch: PolicyBatch) -> PolicyBatch:
        """The batch with the teacher's log-probs of its action tokens, nats.

        Raises:
            DataError: see `rows`.
            DivergenceError: one of them is not finite.
        """
        rows = self.rows(batch.members)
        self.read.add(row.read_tokens for row in rows)
        columns = logprobs(self.model, rows, temperature=self._temperature, max_tokens=self._max_tokens)
        if not all(np.isfinite(column).all() for column in columns):
            raise DivergenceError("a log-prob of the teacher is not finite.")
        return with_teacher_logprobs(batch, columns)

    def state(self) -> dict[str, Any]:
        """Its weights, and their means where these are kept apart; the tensors are those in use."""
        return {"type": self._config.type, "weights": own_weights(self.model), "means": dict(self._means)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            CheckpointError: it is of another teacher.
        """
        if state["type"] != self._config.type or state["means"].keys() != self._means.keys():
            raise CheckpointError(
                f"the checkpoint has a teacher of type '{state['type']}', this run has '{self._config.type}' "
                "or keeps it in another precision"
            )
        restore_weights(self.model, state["weights"], role="teacher")
        for name, mean in self._means.items():
            mean.copy_(state["means"][name])

    def _narrow_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(self._config, EmaTeacher):
            yield from ((name, w) for name, w in self._moving.items() if w.dtype.itemsize < 4)


def teacher_row(member: CreditedTrajectory) -> TokenRow:
    """The teacher's prompt in place of everything before the first action token; what follows stays as it was sampled.

    Without a prompt of its own it reads the trajectory.
    """
    return told_row(member.trajectory, member.teacher_prompt)


def told_row(own: Trajectory, prompt: NDArray[np.int64] | None) -> TokenRow:
    """`teacher_row` of a trajectory and a prompt."""
    if prompt is None:
        return TokenRow(token_ids=own.token_ids, mask=own.action_mask)
    first = int(own.action_mask.argmax())
    return TokenRow(
        token_ids=np.concatenate([prompt, own.token_ids[first:]]),
        mask=np.concatenate([np.zeros(len(prompt), dtype=np.bool_), own.action_mask[first:]]),
    )


def _wide(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().to(torch.float32, copy=True)
