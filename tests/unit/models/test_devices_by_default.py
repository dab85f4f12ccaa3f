"""The device of a run that names none."""

from __future__ import annotations

import pytest
import torch

from lecritique.models.devices import default_device


@pytest.mark.parametrize(("found", "expected"), [(None, "cpu"), ("cuda", "cuda"), ("xpu", "xpu"), ("mps", "cpu")])
def test_it_is_the_accelerator_where_that_computes_in_float64(monkeypatch, found, expected):
    device = None if found is None else torch.device(found)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    assert default_device() == expected
