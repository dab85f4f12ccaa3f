"""Runs that share cores: how many threads each is told to use."""

from __future__ import annotations

import os

import pytest

from lecritique.runtime.threads import available_cores, thread_environment

LARGE, TINY = 500_000_000, 800_000


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(("cores", "jobs", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 4, 1), (1, 1, 1)])
def test_runs_share_the_cores(cores, jobs, threads):
    assert thread_environment(LARGE, cores=cores, jobs=jobs) == {"OMP_NUM_THREADS": str(threads)}


def test_a_tiny_model_keeps_to_one_thread():
    assert thread_environment(TINY, cores=8, jobs=1) == {"OMP_NUM_THREADS": "1"}


def test_what_the_user_has_chosen_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_environment(LARGE, cores=8, jobs=2) == {}


def test_cores_are_those_that_the_process_may_use():
    assert available_cores() == len(os.sched_getaffinity(0))
