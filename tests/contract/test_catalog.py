"""The catalog of metrics and what runs write are the same set: presets, and options that no preset sets yet."""

from __future__ import annotations

import math

import pytest

from lecritique.config.presets import PRESETS
from lecritique.core.metrics import CATALOG
from lecritique.runtime.evaluation import evaluation_metrics
from tests.integration.asynchronous_runs import asynchronous_parts, drive
from tests.integration.short_runs import small_parts, trained

# Arm and overrides of runs beside the presets.
OPTIONS = {
    "clipped": ("value", ("policy.loss.type=ppo", "policy.minibatch_size=4", "critic.loss.type=clipped_mse")),
    "siblings": ("value", ("critic.context.type=siblings",)),
}
# Of dynamic sampling only.
RESAMPLING = {"groups_resampled", "groups_without_variance"}
# Written by every run, whatever the arm.
EVERYWHERE = {name for name, spec in CATALOG.items() if spec.role in ("rollout", "run")} - RESAMPLING


@pytest.fixture(scope="module")
def written() -> dict[str, list[dict[str, float]]]:
    runs = {preset: (preset, ()) for preset in PRESETS} | OPTIONS
    # Hot, so that rewards differ inside groups, however good the model is.
    hot = "sampling.temperature=1.6"
    found = {name: trained(small_parts(hot, *overrides, arm=arm)) for name, (arm, overrides) in runs.items()}
    driven = drive(asynchronous_parts(hot, "run.steps=6", arm="pvf"))
    return found | {"asynchronous": [step.metrics for step in driven.steps], "evaluated": [evaluated()]}


def evaluated() -> dict[str, float]:
    """Metrics of an evaluation between two steps."""
    parts = small_parts("run.eval_every=1", "data.evaluation_fraction=0.3", arm="mean")
    try:
        return evaluation_metrics(parts)[0]
    finally:
        parts.engine.close()


def test_every_written_metric_is_described(written):
    for preset, rows in written.items():
        for row in rows:
            assert set(row) - set(CATALOG) == set(), preset


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_every_described_metric_is_written_and_somewhere_defined(written, name):
    values = [row[name] for rows in written.values() for row in rows if name in row]
    assert values, f"no run writes {name}"
    assert any(math.isfinite(value) for value in values)


def test_presets_without_a_critic_write_no_metric_of_one(written):
    critics = {name for name, spec in CATALOG.items() if spec.role == "critic"}
    for preset in PRESETS:
        rows, has_critic = written[preset], PRESETS[preset].context is not None
        assert all(bool(critics & set(row)) == has_critic for row in rows), preset
        assert all(set(row) >= EVERYWHERE for row in rows), preset


def test_units_and_texts_are_there():
    for name, spec in CATALOG.items():
        assert spec.text and not spec.text.endswith("."), name
        assert spec.unit == "s" or not name.startswith("seconds"), name
