"""How an arm looks, the same in every figure and on the page: colour, dash and marker of its place in the comparison.

Seven colours, then the same ones again with another dash and a marker.
"""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colour-blind-safe set, yellow left out (too pale on white); grey closes the round.
# On the page they are the variables --arm-0 to --arm-6 of page.css.
ARM_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b7f88")
# As matplotlib takes them, in line widths.
_DASHES: tuple[Any, ...] = ("-", (0, (3.5, 1.2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = (None, "s", "^", "D", "v")
# The same for a swatch, in a box of 26 by 10.
_SWATCH_DASHES = ("none", "6 2.5", "2.5 2.5", "9 2.5 2.5 2.5")
_SWATCH_MARKERS = ("", "M10 2h6v6h-6z", "M13 1l4 7.5h-8z", "M13 .8l4.2 4.2-4.2 4.2-4.2-4.2z", "M13 9l4-7.5h-8z")


def arm_colour(index: int) -> str:
    """Colour of arm `index`."""
    return ARM_COLOURS[index % len(ARM_COLOURS)]


def arm_dash(index: int) -> Any:
    """Dash of arm `index` as matplotlib takes it; solid in the first round of colours."""
    return _DASHES[index // len(ARM_COLOURS) % len(_DASHES)]


def arm_marker(index: int) -> str | None:
    """Marker of arm `index` as matplotlib takes it, None in the first round of colours."""
    return _MARKERS[index // len(ARM_COLOURS) % len(_MARKERS)]


def swatch(index: int) -> str:
    """Arm `index` in a legend of the page, as HTML: a dot, or from the second round a piece of its line."""
    round_, colour = divmod(index, len(ARM_COLOURS))
    if round_ == 0:
        return f'<i style="--c:var(--arm-{colour})"></i>'
    dash, marker = _SWATCH_DASHES[round_ % len(_SWATCH_DASHES)], _SWATCH_MARKERS[round_ % len(_SWATCH_MARKERS)]
    return (
        f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true" style="--c:var(--arm-{colour})">'
        f'<path d="M1 5H25" stroke-dasharray="{dash}"></path><path class="marker" d="{marker}"></path></svg>'
    )
