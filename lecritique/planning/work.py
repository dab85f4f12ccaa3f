"""Seconds of each piece of work of a step: what is scored, what is trained, by whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lecritique.config.resolve import teacher_content, uses_teacher
from lecritique.config.schema import NoContext, ReferenceContext, RunConfig, SiblingsContext
from lecritique.config.teachers import NoModulation
from lecritique.planning.placement import Placement, memory_on_gpus, trained_on
from lecritique.planning.roofline import Roofline
from lecritique.planning.weights import ModelWeights, published_bytes

# Tokens of what is told of a reference; others (a rubric, what a task declares) are taken to be as long as a solution.
# Assumed.
_TOLD_TOKENS = {"none": 0.0, "answer": 40.0, "solution": 1500.0, "both": 1540.0}

_MODELS = {"policy trainer": "policy", "value trainer": "critic"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Durations on the GPUs of a placement, of rollouts given by their numbers of sampled tokens.

    `prompt_tokens` stand in front of each; `response_tokens` is the mean of what siblings sample.
    """

    config: RunConfig
    placement: Placement
    roofline: Roofline
    prompt_tokens: int
    response_tokens: int
    told_to_critic: int | None = None
    """Tokens of the critic's context, where that is not left to the assumption."""
    credit_seconds: float = 0.0
    """Of a batch, between its last value and its first trainer: milliseconds, where steps take seconds."""

    def forward_flops(self, tokens: Sequence[float], *, output: bool, before: float = 0.0) -> float:
        """One forward pass over rollouts with their prompts, and `before` tokens that only this reader sees."""
        prompt = self.prompt_tokens + before
        return sum(self.roofline.forward_flops(prompt + count, output=output) for count in tokens)

    def score_value_seconds(self, tokens: Sequence[float]) -> float:
        """The evaluator on these rollouts."""
        flops = self.forward_flops(tokens, output=False, before=self.context_tokens)
        return self.roofline.score_seconds(flops, self.placement.of("evaluator"))

    def train_value_seconds(self, tokens: Sequence[float]) -> float:
        """A critic update on these rollouts, and its publication."""
        trained = self._train_seconds("value trainer", tokens, output=False, before=self.context_tokens)
        return trained + self.roofline.publish_seconds(self._published["critic"])

    def train_policy_seconds(self, tokens: Sequence[float]) -> float:
        """All epochs of the policy's update."""
        return self._train_seconds("policy trainer", tokens, output=True) * self.config.policy.epochs

    def old_logprob_seconds(self, tokens: Sequence[float]) -> float:
        """The policy before its update on these rollouts; 0 where nothing reads that."""
        if not reads_old_logprobs(self.config):
            return 0.0
        flops = self.forward_flops(tokens, output=True)
        return self.roofline.score_seconds(flops, self.placement.of("policy trainer"))

    def teacher_seconds(self, tokens: Sequence[float]) -> float:
        """The teacher, once; 0 without one."""
        if not uses_teacher(self.config):
            return 0.0
        flops = self.forward_flops(tokens, output=True, before=told_to_teacher(self.config))
        return self.roofline.score_seconds(flops, self.placement.of("policy trainer"))

    def policy_seconds(self, tokens: Sequence[float]) -> float:
        """Everything that the policy trainer does with a batch, its publication included."""
        return (
            self.old_logprob_seconds(tokens)
            + self.teacher_seconds(tokens)
            + self.train_policy_seconds(tokens)
            + self.publish_seconds
        )

    @property
    def publish_seconds(self) -> float:
        """New weights of the policy on their way to the engines."""
        return self.roofline.publish_seconds(self._published["policy"])

    @cached_property
    def context_tokens(self) -> float:
        """Tokens that the critic's context adds to a rollout."""
        if self.told_to_critic is not None:
            return float(self.told_to_critic)
        return told_to_critic(self.config, response_tokens=self.response_tokens)

    @cached_property
    def recomputing(self) -> Mapping[str, bool]:
        """Of each trainer, whether it computes activations again: by its configuration, or for want of memory."""
        held = memory_on_gpus(self.config, self.roofline.shape, self.placement)
        found = {role.role: role.checkpointing for role in held}
        return dict.fromkeys(_MODELS, held[0].checkpointing) if self.placement.shared else found

    def _train_seconds(self, role: str, tokens: Sequence[float], *, output: bool, before: float = 0.0) -> float:
        model = self._models[_MODELS[role]]
        prompt, recompute = self.prompt_tokens + before, self.recomputing[role]
        flops = sum(
            self.roofline.training_flops(prompt + count, output=output, model=model, recompute=recompute)
            for count in tokens
        )
        return self.roofline.train_seconds(flops, self.placement.of(role))

    @cached_property
    def _models(self) -> Mapping[str, ModelWeights]:
        return trained_on(self.config, self.roofline.shape, self.placement)

    @cached_property
    def _published(self) -> Mapping[str, int]:
        return published_bytes(self.config, self.roofline.shape)


def reads_old_logprobs(config: RunConfig) -> bool:
    """Whether the policy is asked once more before its update."""
    clipped = config.policy.loss.type in ("ppo", "dapo")
    return clipped or not isinstance(config.policy.modulation, NoModulation)


def told_to_teacher(config: RunConfig) -> float:
    """Tokens that a teacher reads and the policy does not. Assumed."""
    return _TOLD_TOKENS[teacher_content(config)]


def told_to_critic(config: RunConfig, *, response_tokens: float) -> float:
    """Tokens that the critic's context adds to a rollout. Assumed, but for siblings, which are responses."""
    context = config.critic.context
    if isinstance(context, NoContext):
        return 0.0
    if isinstance(context, SiblingsContext):
        return min(float(context.max_tokens or 0), (config.rollout.group_size - 1) * response_tokens)
    return _TOLD_TOKENS[context.content] if isinstance(context, ReferenceContext) else _TOLD_TOKENS["solution"]
