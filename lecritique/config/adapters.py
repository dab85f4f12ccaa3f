"""Which weights train: all of them, or low-rank adapters on frozen ones (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lecritique.config.base import Config

# The linear maps of a decoder layer, by the names that the Llama and Qwen families give them.
LINEAR_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Lora(Config):
    """Each chosen map W stays as it is and becomes W + (alpha / rank) B A; A is random and B 0 at first.

    Adapters want a higher learning rate than full training: in the demo three times the critic's, where ten times is
    too much (docs/scaling.md).
    """

    rank: int = Field(16, ge=1)
    """Rows of A and columns of B: how many directions a map can change in."""
    alpha: float = Field(32.0, gt=0)
    """The change is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] = Field(LINEAR_MAPS, min_length=1)
    """Names of the linear maps in the decoder's layers that get an adapter; each must be there."""


class NoAdapter(Config):
    """All weights train."""

    type: Literal["none"] = "none"


class LoraAdapter(Lora):
    """The model is frozen and an adapter on it trains; engine, trainer and teacher share the frozen weights."""

    type: Literal["lora"] = "lora"


class CopyBackbone(Config):
    """A full copy of the policy's first weights, all of which train (LC's default)."""

    type: Literal["copy"] = "copy"


class LoraBackbone(Lora):
    """A frozen copy of the policy's first weights, or of those of `critic.init`, with an adapter and a value head."""

    type: Literal["lora"] = "lora"


class SharedBackbone(Lora):
    """The frozen weights under the policy's own adapter, with a second adapter and a value head: no copy at all.

    Needs `model.adapter.type` = `lora`. The same numbers as `lora`, in less memory.
    """

    type: Literal["shared"] = "shared"


Adapter = Annotated[NoAdapter | LoraAdapter, Field(discriminator="type")]
Backbone = Annotated[CopyBackbone | LoraBackbone | SharedBackbone, Field(discriminator="type")]
