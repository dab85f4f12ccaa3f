"""The check of a GPU, run on a CPU with a tiny shape: every line of it but what only a GPU has."""

from __future__ import annotations

import json

import pytest
import torch

from tests.gpu import run
from tests.gpu.device_clock import Peak, matmul_flops, timed
from tests.gpu.parity import Gap
from tests.gpu.workloads import FULL, SMALL


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "report.json"
    assert run.main(["--device", "cpu", "--shapes", "small", "--out", str(out)]) == 0
    return json.loads(out.read_text())


def test_the_gaps_are_those_of_arithmetic(report):
    gaps = {(gap["what"], gap["dtype"]): gap for gap in report["parity"]}
    assert gaps["scoring and trainer", "float32"]["max_nats"] < 1e-5
    assert 0 < gaps["sampler and scoring", "float32"]["max_nats"] < 1e-5
    # A rounding to bfloat16 is 2^-8 of a number, and shows where float32 is compared with it.
    assert 1e-5 < gaps["scoring and float32", "bfloat16"]["mean_nats"] < 0.01


def test_every_role_is_measured_on_the_whole_batch(report):
    (work,) = report["workloads"]
    roles = {role["role"]: role for role in work["roles"]}
    assert list(roles) == ["engine", "publishing", "policy trainer", "evaluator", "value trainer"]
    read, sampled = 8 * (12 + 12), 8 * 12
    for name, tokens in (("engine", sampled), ("policy trainer", read), ("evaluator", read), ("value trainer", read)):
        assert roles[name]["tokens_per_second"] * roles[name]["seconds"] == pytest.approx(tokens)
        assert 0 < roles[name]["share_of_matmul_peak"] < 1.5
    off, on = work["step_seconds"]["critic off"], work["step_seconds"]["critic on"]
    assert on - off == pytest.approx(roles["evaluator"]["seconds"] + roles["value trainer"]["seconds"])


def test_the_shapes_have_as_many_parameters_as_they_are_called_by():
    assert [round(work.shape.parameters / 1e8) for work in FULL] == [6, 40]
    (tiny,) = SMALL
    model = tiny.model("meta")
    assert sum(weight.numel() for weight in model.parameters()) == tiny.shape.parameters
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


def test_without_a_gpu_it_fails_and_succeeds_only_when_told_to_skip(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.delenv("LECRITIQUE_SKIP_GPU", raising=False)
    assert run.main([]) == 1
    assert "No accelerator" in capsys.readouterr().err
    monkeypatch.setenv("LECRITIQUE_SKIP_GPU", "1")
    assert run.main([]) == 0
    assert "Skipped." in capsys.readouterr().err


def test_what_does_not_hold_is_said(report):
    assert run.failures(report) == []
    wrong = Gap(what="sampler and scoring", dtype="float32", tokens=1, mean_nats=0.1, max_nats=0.2)
    role = {**report["workloads"][0]["roles"][0], "peak_bytes": 2 << 30, "estimated_bytes": 1 << 30}
    said = run.failures({"parity": [wrong.record()], "workloads": [{"name": "0.6B", "roles": [role]}]})
    assert said == [
        "sampler and scoring in float32 differ by 1.0e-01 nats in the mean, 2.0e-01 at most",
        "the engine of 0.6B took 2.00 GiB, and the plan says 1.00 GiB",
    ]


def test_time_and_rates_are_measured():
    seconds, result = timed("cpu", lambda: 3)
    assert seconds >= 0 and result == 3 and Peak().bytes is None
    assert matmul_flops("cpu", "float32", size=64, repeats=1) > 0
