"""The roles of an asynchronous run in one process, with the order in which they start and stop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from lecritique.config.schema import RunConfig
from lecritique.core.errors import RoleFailure
from lecritique.credit.schedules import Learner
from lecritique.critic.serving import EvaluatorService
from lecritique.models.chat import ChatRenderer
from lecritique.rollout.pump import RolloutPump
from lecritique.runtime.build import Parts
from lecritique.runtime.engines import engine_restarts
from lecritique.runtime.local_roles import Emit, PolicyRole, RolloutRole, ValueTrainingRole
from lecritique.runtime.roles import Answer, ThreadRole
from lecritique.runtime.steps import training_request
from lecritique.runtime.timeline import Timeline

# Roles as they are named in the timeline, and what their share of time is called among the metrics.
UTILISATION = {
    "rollout engine": "utilisation_rollout",
    "policy trainer": "utilisation_policy",
    "value trainer": "utilisation_critic",
    "value evaluator": "utilisation_evaluator",
    "orchestrator": "utilisation_orchestrator",
}
_EVALUATOR_METRICS = (
    "evaluator_latency_p50_seconds",
    "evaluator_latency_p99_seconds",
    "evaluator_batch_fill",
    "evaluator_queue_depth",
    "evaluator_overloaded",
    "evaluator_swaps",
)


class LocalRuntime:
    """Rollout engine, policy trainer, value trainer and value evaluator as threads of this process.

    Args:
        parts: what the roles work on.
        pause_critic: called before each critic update; a benchmark slows the value trainer with it.
    """

    def __init__(self, parts: Parts, *, pause_critic: Callable[[], None] = lambda: None) -> None:
        self.config: RunConfig = parts.config
        self.stream = parts.stream
        self.learner: Learner = parts.learner
        self.spending = parts.spending
        self.timeline = Timeline()
        self.evaluator: EvaluatorService | None = None
        self.rollouts: RolloutRole
        self.policy: PolicyRole
        self.value_training: ValueTrainingRole | None = None
        self._parts = parts
        self._pause_critic = pause_critic
        self._stopped = False
        if parts.service is not None:
            parts.service.time_with(self.timeline)
            self.evaluator = parts.service.evaluator

    def connect(self, emit: Emit) -> None:
        """Make the roles; `emit` takes what they tell."""
        parts, timeline = self._parts, self.timeline
        # Tokenizers are not safe to share between threads, so the rollout engine renders with its own.
        renderer = ChatRenderer(copy.deepcopy(parts.tokenizer))
        pump = RolloutPump(environment=parts.environment, renderer=renderer, engine=parts.engine)
        self.rollouts = RolloutRole(
            pump, request=lambda group_id: training_request(parts, group_id), emit=emit, timeline=timeline
        )
        self.policy = PolicyRole(parts.learner.policy, emit=emit, timeline=timeline)
        if parts.learner.values is not None and parts.service is not None:
            self.value_training = ValueTrainingRole(
                parts.learner.values,
                emit=emit,
                timeline=timeline,
                exclusive=parts.service.exclusive,
                pause=self._pause_critic,
            )

    @property
    def roles(self) -> list[ThreadRole]:
        """In the order in which they stop: who makes work before who takes it."""
        every = (self.rollouts, self.policy, self.value_training)
        return [role for role in every if role is not None]

    def start(self) -> None:
        """Start every role, those that take work first."""
        if self.evaluator is not None:
            self.evaluator.start()
        for role in reversed(self.roles):
            role.start()

    def stop(self, *, wait: bool = True) -> None:
        """Stop every role in order; what is in hand is finished, what is queued is not.

        Without `wait` they end with the process. Called again it does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        for role in self.roles:
            role.stop(wait=wait)
        if self.evaluator is not None and wait:
            self.evaluator.stop(finish=False)

    def while_critic_rests(self, do: Callable[[], Answer]) -> Answer:
        """What `do` gives while no critic update is under way; the policy's side is the caller's to hold."""
        return self.value_training.ask(do) if self.value_training is not None else do()

    def states(self) -> dict[str, dict[str, Any]]:
        """Health and figures of every role."""
        states = {role.name: role.state() for role in self.roles}
        if self.evaluator is not None:
            health = "failed" if self.evaluator.failure else "running"
            states["value evaluator"] = {"health": health, "version": self.evaluator.version}
        return states

    def require_health(self) -> None:
        """Raise RoleFailure when a role has ended by itself, in a way that it could not report."""
        for role in self.roles:
            # One that has failed has said so, and its event says why.
            if role.health not in ("running", "failed"):
                raise RoleFailure(f"the {role.name} has {role.health} in the middle of the run.")
        if self.evaluator is not None and self.evaluator.failure is not None:
            raise self.evaluator.ended()

    def metrics(self, seconds: float) -> dict[str, float]:
        """Utilisation of each role and the evaluator's figures over the last so many seconds."""
        busy = self.timeline.busy_seconds()
        metrics = {name: busy.get(role, 0.0) / seconds for role, name in UTILISATION.items()}
        metrics["engine_restarts"] = float(engine_restarts(self._parts.engine))
        if self.evaluator is not None:
            figures = self.evaluator.metrics()
            metrics |= {name: figures[name] for name in _EVALUATOR_METRICS}
        return metrics
