"""The base of all configuration models: frozen, strict about keys, documented field by field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen, unknown keys refused; the docstring under a field becomes its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=True,
    )
