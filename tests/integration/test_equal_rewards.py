"""A run that earns the same with every rollout says so; one that distils a teacher does not mind."""

from __future__ import annotations

import json

import pytest

from lecritique.runtime import training
from tests.integration.command_line import call
from tests.integration.short_runs import SMALL

# Two tokens are no grid: every answer is cut and wrong.
MUTE = ("sampling.max_turn_tokens=2",)


@pytest.mark.parametrize(
    ("arm", "settings", "warned"), [("mean", MUTE, True), ("mean", (), False), ("opsd", MUTE, False)]
)
def test_a_run_without_reward_variance_is_told_to_its_user(tmp_path, capfd, monkeypatch, arm, settings, warned):
    monkeypatch.setattr(training, "WATCHED_STEPS", 2)
    run = tmp_path / "run"
    answer = call(capfd, monkeypatch, "train", "demo", *SMALL, *settings, "--arm", arm, "--out", str(run))
    assert answer.code == 0, answer.err
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] == "equal_rewards"]
    assert len(told) == answer.out.count("equal rewards teach nothing") == warned
    for event in told:
        assert (event["step"], event["steps"], event["rollouts"], event["reward"]) == (2, 2, 16, 0.0)
