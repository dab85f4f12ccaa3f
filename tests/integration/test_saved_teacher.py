"""Saved rollouts hold what a teacher said of each token and what it made of the advantages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lecritique.analysis.read import load_run
from lecritique.analysis.tokens import sample, teacher_gaps
from lecritique.numerics.fusion import fused_advantages
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.build import build, load_base
from lecritique.runtime.training import train
from tests.integration.short_runs import small_config


def saved_steps(folder, arm, *overrides):
    """A run of two steps that saves every rollout: its configuration, its metrics, its saved rollouts by step."""
    config = small_config("run.save_rollouts_every=1", *overrides, arm=arm)
    directory = RunDirectory.create(folder, config)
    train(build(load_base(config)), directory)
    directory.close()
    run = load_run(folder)
    return config, run, [[table.rollout(index) for index in range(len(table))] for table in run.rollouts()]


@pytest.mark.parametrize(
    ("arm", "overrides"),
    [
        ("vaspo", ("runtime.loop=synchronous",)),
        ("mean", ("runtime.loop=asynchronous", "policy.modulation.type=fusion")),
    ],
)
def test_the_gap_and_the_modulated_advantages_are_those_of_the_update(tmp_path, arm, overrides):
    config, run, steps = saved_steps(tmp_path / "run", arm, *overrides)
    fusion = config.policy.modulation
    changed = 0
    for index, rollouts in enumerate(steps):
        assert len(rollouts) == config.rollout.batch_size
        gaps = []
        for rollout in rollouts:
            mask, gap = rollout.action_mask, teacher_gaps(rollout)
            expected = fused_advantages(
                torch.from_numpy(rollout.advantages[mask]), torch.from_numpy(gap[mask]),
                eps_w=fusion.eps_w, tau=fusion.tau, delta=fusion.delta, masked=fusion.masked,
            )  # fmt: skip
            # Columns are saved in single precision: a token at the very edge of the gate may fall on its other side.
            far = np.abs(np.abs(gap[mask]) - fusion.delta) > 1e-4
            np.testing.assert_allclose(rollout.modulated_advantages[mask][far], expected.numpy()[far], rtol=1e-5)
            changed += int((rollout.modulated_advantages[mask] != rollout.advantages[mask]).sum())
            gaps.append(gap[mask])
            shown = sample(rollout)
            assert [g is None for g in shown["gap"]] == [not act for act in mask]
        # All rollouts of the step are saved, so that the metric is the mean of what was saved.
        assert np.concatenate(gaps).mean() == pytest.approx(run.series("teacher_gap_mean_nats")[index], rel=1e-4)
    assert changed > 0


def test_without_a_teacher_or_when_it_moves_there_is_none(tmp_path):
    _, _, (first, *_) = saved_steps(tmp_path / "mean", "mean", "run.steps=1")
    assert all(r.teacher_logprobs is None and r.modulated_advantages is None and r.old_logprobs is None for r in first)
    assert sample(first[0])["gap"] is None and sample(first[0])["modulated"] is None
    _, _, (first, *_) = saved_steps(tmp_path / "late", "vaspo", "run.steps=1", "policy.teacher.rescore=true")
    assert all(r.teacher_logprobs is None and r.modulated_advantages is None for r in first)
