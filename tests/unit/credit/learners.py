"""Learners of small random models, and rollout batches for them."""

from __future__ import annotations

import numpy as np
from scored import random_group
from small_models import small_policy

from lecritique.config.estimators import OptimizerConfig
from lecritique.config.losses import ClippedMse
from lecritique.config.schema import PolicySection
from lecritique.core.task import Message, Reference, Task
from lecritique.core.trajectory import ContextInsertion
from lecritique.credit.crediting import Crediting
from lecritique.credit.schedules import Group, Learner
from lecritique.critic.evaluator import ValueEvaluator
from lecritique.critic.replay import ReplayBuffer
from lecritique.critic.system import ValueSystem
from lecritique.critic.trainer import ValueTrainer
from lecritique.models.value_model import ValueModel
from lecritique.models.weights import MemoryWeightStore
from lecritique.policy.teacher import SelfTeacher
from lecritique.policy.trainer import PolicyTrainer


class OfTheTask:
    """A context that depends on the task alone."""

    needs_siblings = False

    def __call__(self, task: Task, siblings=()) -> ContextInsertion:
        number = int(task.task_id.removeprefix("row-"))
        return ContextInsertion(position=0, token_ids=np.array([number % 7, 1 + number % 11]))


def group(seed: int, *, size: int = 4) -> Group:
    members = random_group(seed, row=seed, size=size).trajectories
    task = Task(task_id=f"row-{seed}", messages=(Message(role="user", content="q"),), reference=Reference(answer="1"))
    return Group(group_id=members[0].group_id, task=task, trajectories=members)


def critic_of(policy, loss, store, *, learning_rate: float = 1e-2) -> ValueSystem:
    models = [ValueModel.from_policy(policy, loss, seed=3) for _ in range(2)]
    return ValueSystem(
        evaluator=ValueEvaluator(models[0], store, max_tokens=1000, context_length=100),
        trainer=ValueTrainer(models[1], OptimizerConfig(learning_rate=learning_rate), store, max_tokens=1000),
        replay=ReplayBuffer(batch_size=8, max_uses=1),
        updates_per_step=1,
    )


def learner(
    estimator, *, value_loss=None, warmup_updates: int = 0, ship: bool = False, target_lambda: float = 1.0,
    teacher_prompts=None, **policy_section,
) -> Learner:  # fmt: skip
    store, policy = MemoryWeightStore(), small_policy()
    config = PolicySection(optimizer=OptimizerConfig(learning_rate=1e-3), **policy_section)
    teacher = SelfTeacher(policy, config.teacher, temperature=1.0, max_tokens=1000, context_length=100)
    return Learner(
        policy=PolicyTrainer(
            policy, config, store, temperature=1.0, max_tokens=1000, teacher=teacher if teacher_prompts else None
        ),
        crediting=Crediting(estimator, value_target_lambda=target_lambda, batch_size=8, warmup_updates=warmup_updates),
        values=critic_of(policy, value_loss or ClippedMse(), store),
        context=OfTheTask(),
        warmup_updates=warmup_updates,
        ship_while_cold=ship,
        teacher_prompts=teacher_prompts,
    )
