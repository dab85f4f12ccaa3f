"""A policy by what it is known as: a run, one of its checkpoints, a model folder, a bundled name or a hub id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lecritique.config.adapters import LoraAdapter
from lecritique.config.schema import RunConfig
from lecritique.core.errors import CheckpointError, ConfigurationError
from lecritique.models.loading import LanguageModel, load_causal_lm
from lecritique.models.restoring import restore_trained
from lecritique.models.scoring import require_plain_head
from lecritique.models.weights import state_digest
from lecritique.runs.checkpoints import FOLDER, MARKER, checkpoint_step
from lecritique.runs.directory import read_config, read_end
from lecritique.runtime.saving import newest_checkpoint, saved_tree


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedPolicy:
    """A policy, and the configuration of the run that made it (None for a model of its own).

    `step` are the steps that the run had done, None where that is not known.
    """

    source: str
    language: LanguageModel
    run: RunConfig | None
    step: int | None

    @property
    def digest(self) -> str:
        """A name of the weights: equal weights have the same."""
        return state_digest(self.language.model.state_dict())


def load_policy(source: str, *, dtype: torch.dtype, device: str) -> LoadedPolicy:
    """Load it.

    Args:
        source: a run directory (its final weights once it is finished, else its newest whole checkpoint), a folder
            `RUN/checkpoints/step-...`, or whatever `model.name` takes.
        dtype: of the weights.
        device: where they go.

    Raises:
        ConfigurationError: there is no such thing, or its model cannot be loaded.
        CheckpointError: a run without a whole checkpoint, or a damaged one.
    """
    path = Path(source).expanduser()
    if (path / MARKER).is_file() or path.parent.name == FOLDER:
        return _from_checkpoint(source, path, run=path.parent.parent, dtype=dtype, device=device)
    if not is_run(path):
        return LoadedPolicy(source=source, language=_load(source, dtype, device), run=None, step=None)
    config = read_config(path)
    final = path / "weights" / "policy"
    # A run that goes on again keeps the weights of its earlier end.
    ended = read_end(path)
    if ended is not None and (final / "config.json").is_file():
        language = _load(str(final), dtype, device)
        return LoadedPolicy(source=source, language=language, run=config, step=ended[0])
    newest, _ = newest_checkpoint(path)
    return _from_checkpoint(source, newest, run=path, dtype=dtype, device=device)


def is_run(path: Path) -> bool:
    """Whether a folder with a config.json is a run and not a model."""
    return (path / "config.json").is_file() and any(
        (path / name).exists() for name in ("status.json", "environment.json", FOLDER, "metrics.jsonl")
    )


def require_same_vocabulary(one: LoadedPolicy, other: LoadedPolicy) -> None:
    """Raise ConfigurationError unless the token ids of two policies mean the same."""
    a, b = one.language.tokenizer, other.language.tokenizer
    if a.get_vocab() != b.get_vocab() or a.chat_template != b.chat_template:
        raise ConfigurationError(
            f"'{one.source}' and '{other.source}' have different vocabularies or chat templates: one critic cannot "
            "read the token ids of both."
        )


def _load(name: str, dtype: torch.dtype, device: str) -> LanguageModel:
    language = load_causal_lm(name, dtype=dtype, device=device)
    require_plain_head(language.model, language.name)
    return language


def _from_checkpoint(source: str, path: Path, *, run: Path, dtype: torch.dtype, device: str) -> LoadedPolicy:
    tree = saved_tree(path)
    config = read_config(run)
    try:
        saved: Mapping[str, Any] = tree["learner"]["policy"]
        step = checkpoint_step(path)
        adapter = config.model.adapter if isinstance(config.model.adapter, LoraAdapter) else None
        # Several processes keep float32 weights for whatever precision they compute in; under an adapter they stay
        # what they were.
        kept = next(iter(saved["weights"].values())).dtype
        if adapter is not None:
            kept = getattr(torch, config.runtime.dtype)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint '{path}' does not hold what this version reads: {error!r}") from error
    language = _load(config.model.name, kept, device)
    restore_trained(language.model, saved, adapter, role="policy")
    language.model.to(dtype=dtype)
    return LoadedPolicy(source=source, language=language, run=config, step=step)
