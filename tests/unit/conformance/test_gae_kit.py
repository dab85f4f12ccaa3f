"""The conformance kit: this package passes, correct stand-ins pass, and each planted fault is flagged by name."""

from __future__ import annotations

import math

import pytest
import torch

from lecritique.conformance import (
    GAE_CASES,
    GaeRequest,
    Unsupported,
    check_gae,
    lecritique_gae,
    nemo_rl_gae,
    openrlhf_gae,
    skyrl_gae,
    verl_gae,
)
from tests.unit.conformance.stand_ins import (
    NemoRlLike,
    OpenRlhfLike,
    skyrl_like,
    verl_like,
    walk_actions,
    walk_tokens,
    walk_zeroed_tokens,
)

ADAPTED = {
    "verl": lambda walk: verl_gae(verl_like(walk)),
    "skyrl": lambda walk: skyrl_gae(skyrl_like(walk)),
    "openrlhf": lambda walk: openrlhf_gae(OpenRlhfLike(walk).get_advantages_and_returns),
    "nemo_rl": lambda walk: nemo_rl_gae(lambda config: NemoRlLike(config, walk)),
}
OBSERVATION = {
    "observation-tokens-lambda-0.95",
    "observation-tokens-lambda-0.5",
    "observation-tokens-gamma",
    "exact-critic",
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_this_package_passes_everything(dtype: torch.dtype) -> None:
    report = check_gae(lecritique_gae, dtype=dtype)
    assert report.passed and not report.failures and not report.not_checked, report.text()
    assert len(report.results) == len(GAE_CASES) >= 24


@pytest.mark.parametrize("framework", ADAPTED)
def test_a_correct_function_of_each_signature_conforms(framework: str) -> None:
    report = check_gae(ADAPTED[framework](walk_actions))
    assert report.passed, report.text()
    not_checked = {result.name for result in report.not_checked}
    common = {"truncated-bootstrap", "bootstrap-discounted", "segments", "packed", "packed-one-step"}
    own = {"dense-rewards"} if framework == "nemo_rl" else {"independent-lambdas"}
    assert not_checked == common | own


@pytest.mark.parametrize("framework", ADAPTED)
@pytest.mark.parametrize("walk", [walk_tokens, walk_zeroed_tokens])
def test_stepping_over_observation_tokens_is_flagged(framework: str, walk) -> None:
    report = check_gae(ADAPTED[framework](walk))
    failed = {result.name for result in report.failures}
    assert not report.passed
    assert failed >= OBSERVATION, report.text()
    assert not failed & {"monte-carlo", "one-step", "discounted", "long-response", "observation-tokens-lambda-1.0"}
    exact = next(result for result in report.failures if result.name == "exact-critic")
    assert "advantages on the action tokens are" in exact.detail or "targets" in exact.detail


def test_the_size_of_the_fault_is_as_measured() -> None:
    """An exact critic that says 50 on a token between two turns: lambda .95 gives +2.45 before it instead of 0."""
    values = torch.tensor([[1.0, 50.0, 1.0]], dtype=torch.float64)
    request = GaeRequest(
        rewards_BT=torch.tensor([[0, 0, 1.0]], dtype=torch.float64),
        values_BT=values,
        action_mask_BT=torch.tensor([[True, False, True]]),
        gamma=1.0,
        gae_lambda=0.95,
        value_target_lambda=0.95,
    )
    wrong, _ = ADAPTED["openrlhf"](walk_tokens)(request)
    assert wrong[0, 0].item() == pytest.approx(0.05 * 49)
    right, _ = ADAPTED["openrlhf"](walk_actions)(request)
    assert right[0, 0].item() == 0.0


def planted(change) -> set[str]:
    """Names that fail when `change` is done to a right answer or to its request."""
    return {result.name for result in check_gae(change).failures}


def shifted(request: GaeRequest):
    values = request.values_BT.detach()
    return lecritique_gae(
        GaeRequest(**{**vars(request), "values_BT": torch.cat([values[:, 1:], values[:, :1] * 0], dim=1)})
    )


def packed_as_one(request: GaeRequest):
    return lecritique_gae(GaeRequest(**{**vars(request), "packed_lengths": None}))


def segments_alone(request: GaeRequest):
    return lecritique_gae(GaeRequest(**{**vars(request), "episodes": None}))


def no_bootstrap(request: GaeRequest):
    return lecritique_gae(GaeRequest(**{**vars(request), "bootstrap_B": None}))


def low_precision_lambda(request: GaeRequest):
    lam = float(torch.tensor(request.gae_lambda).bfloat16())
    return lecritique_gae(GaeRequest(**{**vars(request), "gae_lambda": lam, "value_target_lambda": lam}))


def whitening(request: GaeRequest):
    advantages, targets = lecritique_gae(request)
    return advantages - advantages[request.action_mask_BT].mean(), targets


def with_gradient(request: GaeRequest):
    advantages, targets = lecritique_gae(request)
    return advantages, targets + 0.0 * request.values_BT.nan_to_num()


def test_other_faults_are_flagged_where_they_belong() -> None:
    assert {"monte-carlo", "one-step", "prompt-tokens"} <= planted(shifted)
    assert planted(packed_as_one) == {"packed", "packed-one-step"}
    assert planted(segments_alone) == {"segments"}
    assert planted(no_bootstrap) == {"truncated-bootstrap", "bootstrap-discounted"}
    assert "long-response" in planted(low_precision_lambda)
    assert {"monte-carlo", "packed"} <= planted(whitening)
    assert planted(with_gradient) == {"no-gradient"}
    assert check_gae(with_gradient).passed
    assert planted(ADAPTED["verl"](walk_actions)) == set()


def test_multiplying_by_the_mask_is_right_but_weak() -> None:
    def multiplied_afterwards(request: GaeRequest):
        mask = request.action_mask_BT.to(request.values_BT.dtype)
        advantages, targets = lecritique_gae(
            GaeRequest(**{**vars(request), "values_BT": request.values_BT.detach() * mask})
        )
        return advantages + (request.rewards_BT * (1 - mask) * 0).sum(-1, keepdim=True), targets

    report = check_gae(multiplied_afterwards)
    assert {result.name for result in report.failures} == {"nan-off-the-mask"}
    assert report.passed and "weak" in report.text()


def test_the_text_says_what_was_got_and_what_was_expected() -> None:
    text = check_gae(ADAPTED["skyrl"](walk_tokens)).text()
    assert "observation-tokens-lambda-0.95" in text
    assert "expected [0.751, 0.58, 0.4]" in text
    assert "does not conform" in text.splitlines()[-1]
    assert "takes one row an episode" in text


def test_a_crash_fails_the_case_and_a_wrong_shape_too() -> None:
    def crashes(request: GaeRequest):
        raise ZeroDivisionError("by zero")

    def flat(request: GaeRequest):
        return request.values_BT[0], request.values_BT[0]

    assert all("ZeroDivisionError: by zero" in result.detail for result in check_gae(crashes).failures)
    assert len(check_gae(crashes).failures) == len(GAE_CASES)
    assert "shape" in check_gae(flat).failures[0].detail


def test_what_cannot_be_asked_is_not_failed() -> None:
    def asks_for_less(request: GaeRequest):
        raise Unsupported("nothing")

    report = check_gae(asks_for_less)
    assert report.passed and len(report.not_checked) == len(GAE_CASES)
    with pytest.raises(ValueError, match="bfloat16"):
        check_gae(lecritique_gae, dtype=torch.bfloat16)


def test_a_nan_answer_is_a_failure() -> None:
    def undefined(request: GaeRequest):
        return torch.full_like(request.values_BT, math.nan).detach(), request.values_BT.detach()

    assert "monte-carlo" in planted(undefined)


def test_an_implementation_that_writes_into_its_input_spoils_no_other_case() -> None:
    def scribbles(request: GaeRequest):
        found = lecritique_gae(request)
        request.values_BT.detach().fill_(99.0)
        request.action_mask_BT.fill_(False)
        return found

    assert not check_gae(scribbles).failures
    assert not check_gae(lecritique_gae).failures
