"""A kit that checks anyone's generalised advantage estimation, through a callable.

    from lecritique.conformance import check_gae, verl_gae
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    report = check_gae(verl_gae(compute_gae_advantage_return))
    print(report.text())
    assert report.passed

What is checked: the equation at several discounts, observation tokens between actions, prompts, padding, what stands
off the mask, where the terminal reward sits, truncation, segments of one episode and packed rows. A function that has
no way to be asked for something is not failed for it: the case is reported as not checked, with the reason.

A function of one's own needs an adapter of a few lines: take a `GaeRequest`, return advantages and targets of its
shape, and raise `Unsupported` for what cannot be expressed. `adapters.py` has five to read.
"""

from lecritique.conformance.adapters import lecritique_gae, nemo_rl_gae, openrlhf_gae, skyrl_gae, verl_gae
from lecritique.conformance.gae_cases import GAE_CASES, GaeCase
from lecritique.conformance.request import GaeCallable, GaeRequest, Unsupported
from lecritique.conformance.runner import CaseResult, Report, check_gae

__all__ = [
    "GAE_CASES",
    "CaseResult",
    "GaeCallable",
    "GaeCase",
    "GaeRequest",
    "Report",
    "Unsupported",
    "check_gae",
    "lecritique_gae",
    "nemo_rl_gae",
    "openrlhf_gae",
    "skyrl_gae",
    "verl_gae",
]
