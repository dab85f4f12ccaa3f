"""The papers' symbols and what they are called here.

A name is `module.attribute` below `lecritique`, or a parameter
of it as `module.attribute(parameter)`; a test resolves each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperName:
    """One row: the symbol in TeX between dollars, what it is, where it lives here, where the papers define it."""

    paper: str
    meaning: str
    names: tuple[str, ...]
    source: str


def _row(paper: str, meaning: str, names: str, source: str) -> PaperName:
    return PaperName(paper, meaning, tuple(names.split()), source)


PAPER_NAMES: tuple[PaperName, ...] = (
    _row("$h_t$", "history before token $t$; tokens, never an object", "core.trajectory.Trajectory", "LC 2.3"),
    _row("$z$", "privileged context, hidden from the policy", "core.trajectory.ContextInsertion", "LC 3, VP 3"),
    _row("$R$", "return of a rollout", "numerics.gae.terminal_rewards(reward)", "LC 2.1"),
    _row(
        "$V_\\phi(h_t)$, $V_\\phi(h_t, z)$",
        "value of the state before token $t$",
        "numerics.gae.gae(values_T)",
        "LC 2.3, eq. 12",
    ),
    _row("$\\hat A_t$", "advantage", "numerics.gae.gae", "LC 2.3"),
    _row("$\\gamma$", "discount per action token", "numerics.gae.gae(gamma)", "LC 2.3"),
    _row("$\\lambda$", "of the advantages", "numerics.gae.gae(gae_lambda)", "LC 2.3"),
    _row("$\\lambda_V$", "of the value targets", "numerics.gae.gae(value_target_lambda)", "method sheet 3"),
    _row("$G_t$", "value target", "numerics.explained_variance.explained_variance(targets_N)", "LC 4.3, VP eq. 8"),
    _row("$b = \\frac1K\\sum_j R_j$", "group mean", "numerics.baselines.group_baselines(kind)", "LC eq. 3"),
    _row("$B$, $B_i^{LOO}$", "leave-one-out mean", "numerics.baselines.group_baselines", "LC 5"),
    _row("$\\rho$", "trust in the critic over the group", "numerics.tether.tether_advantages(rho)", "LC eq. 15"),
    _row("$\\hat\\rho$", "its fit on one window", "numerics.tether.tether_fit", "LC eq. 15"),
    _row("$x_t$, $y_t$", "$V_t - B$ and $Q_t - B$", "numerics.tether.tether_pairs", "LC 5"),
    _row("$d$ (decay)", "of the running mean of fits", "numerics.tether.tether_ema(decay)", "LC 5, appendix C"),
    _row("EV", "explained variance", "numerics.explained_variance.explained_variance", "LC 4.3"),
    _row(
        "$\\mathit{lp}$, $\\mathit{lq}$",
        "trainer and sampler log-probs",
        "numerics.policy_losses.dppo_loss(logprobs_N) numerics.policy_losses.dppo_loss(sampler_logprobs_N)",
        "method sheet 1",
    ),
    _row(
        "DPPO's thresholds",
        "on differences of probability",
        "numerics.policy_losses.dppo_loss(mask_low) numerics.policy_losses.dppo_loss(mask_high)",
        "LC's code",
    ),
    _row("$\\rho^*$", "score-norm-weighted optimum", "numerics.tether.score_norm_optimum", "LC appendix C"),
    _row("$\\lambda_i$, $\\alpha$", "length-adaptive lambda", "numerics.gae.lambda_for_lengths(alpha)", "2504.05118"),
    _row("$\\rho_t(\\theta)$", "clipped ratio", "numerics.policy_losses.ppo_loss", "VP eq. 4, 20"),
    _row("$u_t$", "rollout weight", "numerics.policy_losses.rollout_weight", "VP 3, method sheet 1"),
    _row("$V^{clip}$, $\\epsilon_v$", "clipped value loss", "numerics.value_losses.clipped_mse(eps_v)", "VP eq. 8-9"),
    _row("$d_t$", "teacher minus student log-prob", "numerics.fusion.teacher_gap", "VP 3"),
    _row("$w_t$, $\\epsilon_w$", "clipped teacher weight", "numerics.fusion.fusion_weight(eps_w)", "VP 3"),
    _row(
        "$M_t$, $\\tau$, $\\delta$",
        "gate of the fusion",
        "numerics.fusion.fusion_gate(tau) numerics.fusion.fusion_gate(delta)",
        "VP 3",
    ),
    _row(
        "$A'_t$",
        "fused advantage",
        "numerics.fusion.fused_advantages numerics.fusion.rlsd_advantages",
        "VP 3, 2604.03128",
    ),
    _row("$D(q \\Vert p)$", "distillation divergence", "numerics.distillation.opsd_divergence(kind)", "VP eq. 6"),
    _row("avg@$K$", "mean score over problems and samples", "numerics.statistics.accuracy.avg_at_k", "VP eq. 16"),
    _row(
        "Brier",
        "squared error against continuations",
        "numerics.statistics.calibration.continuation_brier",
        "VP eq. 23",
    ),
    _row(
        "$\\mathrm{EV}_w$",
        "weighted explained variance",
        "numerics.statistics.calibration.weighted_explained_variance",
        "VP eq. 24",
    ),
    _row(
        "$C$",
        "late minus early gain of the privileged critic",
        "numerics.statistics.positions.late_gain_contrast",
        "VP eq. 22",
    ),
)
