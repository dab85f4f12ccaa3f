"""What the policy earns before any training: the line that every arm is measured against."""

from __future__ import annotations

from lecritique.core.seeds import derive_seed
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.collect import collect
from lecritique.runtime.build import Base
from lecritique.runtime.engines import configured_engine
from lecritique.runtime.steps import group_request, rollout_metrics
from lecritique.tasks.stream import DataStream


def base_reward(base: Base, *, rollouts: int = 512) -> float:
    """Mean reward of the frozen base model on the first groups of the training stream.

    Its sampling seed differs from training's, so that the first training batch is not measured twice.
    """
    config = base.config
    size = config.rollout.group_size
    stream = DataStream(base.data.rows, derive_seed(config.run.seed, "data"))
    seed = derive_seed(config.run.seed, "base_reward")
    requests = [
        group_request(base.environment, config, group_id, group_size=size, seed=seed)
        for group_id in stream.groups(0, -(-rollouts // size))
    ]
    longest = requests[0].max_total_tokens
    engine = configured_engine(base.language.model, MemoryWeightStore(), config, max_length=longest)
    try:
        collected = collect(requests, environment=base.environment, renderer=base.renderer, engine=engine)
    finally:
        engine.close()
    return rollout_metrics(collected, 1.0)["reward"]
