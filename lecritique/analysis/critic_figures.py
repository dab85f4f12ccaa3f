"""What the critic knows: explained variance over training, at the end, along the response; Tether's trust in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lecritique.analysis.bar_figures import bar_plot, endpoint_bars
from lecritique.analysis.curve_figures import Curve, curve_plot, metric_curves, plain_curve, without
from lecritique.analysis.figures import Plot, beside_bars
from lecritique.analysis.positions import TURNS, PlaceFits
from lecritique.analysis.read import Comparison
from lecritique.analysis.wording import number
from lecritique.core.metrics import ValueFit

_LATE = "pooled over the saved rollouts of the last third of training"


def critic_plots(comparison: Comparison, fits: Mapping[str, PlaceFits]) -> list[Plot]:
    """The figures of the critic; empty where there is none and rho was never recorded."""
    curves = metric_curves(comparison, "explained_variance")
    rho = metric_curves(comparison, "rho")
    places = _place_curves(comparison, {arm: fit.positions for arm, fit in fits.items()}, relative=True)
    if not (curves or rho or places):
        return []
    found = [
        curve_plot(
            curves,
            name="explained-variance-curve",
            title="How well the critic predicts returns",
            label="explained variance",
            caption="LC's EV panel. 1 is perfect, 0 no better than a constant, below 0 worse than one; what falls "
            f"below {number(-0.5, 1)} runs off the lower edge. Differs from LC: these predictions are from before the "
            "critic trained on the batch, LC's are on its training batches." + without(comparison, curves),
            absent="No arm has recorded an explained variance: there is no critic, or its targets never varied.",
            floor=True,
            zero=True,
            size=beside_bars(len(comparison.arms)),
        ),
        bar_plot(
            endpoint_bars(comparison, "explained_variance"),
            name="explained-variance-bars",
            title="Explained variance at the end",
            label="explained variance of the last steps",
            caption="LC's end bars. The mean of the steps' explained variances; the bracket is a 95% interval, each "
            "dot one seed.",
            absent="No run has an explained variance at its end.",
        ),
    ]
    found += _both_sides_of_the_update(comparison)
    found.append(
        curve_plot(
            places,
            name="explained-variance-by-position",
            title="Where in the response the critic knows",
            label="explained variance",
            caption=f"Explained variance in tenths of the response, {_LATE}. A line that climbs is a critic that sees "
            "the outcome coming.",
            absent="No saved rollout of the last third carries values whose targets vary.",
            x_label="place in the response",
            floor=True,
            zero=True,
            dots=True,
            places=True,
        )
    )
    found += _by_turn(comparison, fits)
    if rho:
        found.append(
            curve_plot(
                rho,
                name="rho-curve",
                title="How far Tether trusts the critic",
                label="rho",
                caption="LC's rho panel. rho weighs the critic against the group's own mean: at 0 the critic is "
                "ignored, at 1 it is the baseline." + without(comparison, rho),
                absent="",
            )
        )
    return found


def _both_sides_of_the_update(comparison: Comparison) -> list[Plot]:
    after = metric_curves(comparison, "explained_variance_post_update", series="after the update")
    if not after:
        return []
    before = metric_curves(comparison, "explained_variance", series="before the update", light=True)
    with_both = {curve.arm for curve in after}
    return [
        curve_plot(
            [curve for curve in before if curve.arm in with_both] + after,
            name="explained-variance-pre-update",
            title="The critic before and after its update",
            label="explained variance",
            caption="VP's critic EV. Dotted: values from before the critic trained on the batch. Full: the values that "
            "credited it, of a critic that has trained on these very returns, so they are not held-out."
            + without(comparison, after),
            absent="",
            floor=True,
            zero=True,
        )
    ]


def _by_turn(comparison: Comparison, fits: Mapping[str, PlaceFits]) -> list[Plot]:
    if max((len(fit.turns) for fit in fits.values()), default=0) < 2:
        return []
    curves = _place_curves(comparison, {arm: fit.turns for arm, fit in fits.items()}, relative=False)
    if not curves:
        return []
    late = f"; the {TURNS}th turn holds all later ones" if max(len(fit.turns) for fit in fits.values()) == TURNS else ""
    return [
        curve_plot(
            curves,
            name="explained-variance-by-turn",
            title="In which turn the critic knows",
            label="explained variance",
            caption=f"Explained variance of each turn's tokens, {_LATE}{late}.",
            absent="",
            x_label="turn",
            floor=True,
            zero=True,
            dots=True,
        )
    ]


def _place_curves(comparison: Comparison, fits: Mapping[str, Sequence[ValueFit]], *, relative: bool) -> list[Curve]:
    found = []
    for index, arm in enumerate(comparison.arms):
        explained = np.array([fit.value() for fit in fits.get(arm, ())])
        if not np.isfinite(explained).any():
            continue
        x = (np.arange(len(explained)) + 0.5) / len(explained) if relative else np.arange(len(explained)) + 1.0
        found.append(plain_curve(arm, index, x, explained))
    return found
