"""What the policy earns before any training: the line that every arm is measured against."""

from __future__ import annotations

from lecritique.core.rollout import GroupRequest
from lecritique.core.seeds import derive_seed
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.collect import collect
from lecritique.runtime.build import Base, sampling_of
from lecritique.runtime.engines import configured_engine
from lecritique.runtime.steps import rollout_metrics
from lecritique.tasks.protocol import checked_task
from lecritique.tasks.stream import DataStream


def base_reward(base: Base, *, rollouts: int = 512) -> float:
    """Mean reward of the frozen base model on the first groups of the training stream.

    Its sampling seed differs from training's, so that the first training batch is not measured twice.
    """
    config = base.config
    size = config.rollout.group_size
    stream = DataStream(base.data.rows, derive_seed(config.run.seed, "data"))
    limit = config.sampling.max_total_tokens
    assert limit is not None
    requests = [
        GroupRequest(
            group_id=group_id,
            task=checked_task(base.environment, group_id.row),
            group_size=size,
            sampling=sampling_of(config),
            max_turn_tokens=config.sampling.max_turn_tokens,
            max_total_tokens=limit,
            seed=derive_seed(config.run.seed, "base_reward"),
        )
        for group_id in stream.groups(0, -(-rollouts // size))
    ]
    engine = configured_engine(base.language.model, MemoryWeightStore(), config, max_length=limit)
    try:
        collected = collect(requests, environment=base.environment, renderer=base.renderer, engine=engine)
    finally:
        engine.close()
    return rollout_metrics(collected, 1.0)["reward"]
