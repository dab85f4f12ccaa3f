"""How an arm looks, the same in every figure and on the page: colour, dash, marker and hatch of its place.

The first seven arms are plain lines in colours that colour-blind readers tell apart too. From the eighth on colour
alone would not do: arms have further colours, and with every seven also another dash and marker of their lines and
hatch of their bars.
"""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colour-blind-safe set, yellow left out (too pale on white), and grey; then five that are as far from
# these and from each other as they are, at 3:1 or more on the page. There they are the variables --arm-0 to --arm-11.
ARM_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b7f88",
    "#7a2fd0", "#6e3d12", "#c0185a", "#6f7a00", "#0a4a3c",
)  # fmt: skip
PLAIN_ARMS = 7
# As matplotlib takes them, in line widths.
_DASHES: tuple[Any, ...] = ("-", (0, (3.5, 1.2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_HATCHES = (None, "////", "....", "xxxx")
_MARKERS = (None, "s", "^", "D", "v")
# The same for a swatch, in a box of 26 by 10.
_SWATCH_DASHES = ("none", "6 2.5", "2.5 2.5", "9 2.5 2.5 2.5")
_SWATCH_MARKERS = ("", "M10 2h6v6h-6z", "M13 1l4 7.5h-8z", "M13 .8l4.2 4.2-4.2 4.2-4.2-4.2z", "M13 9l4-7.5h-8z")


def arm_colour(index: int) -> str:
    """Colour of arm `index`."""
    return ARM_COLOURS[index % len(ARM_COLOURS)]


def arm_dash(index: int) -> Any:
    """Dash of arm `index` as matplotlib takes it; solid for the plain arms."""
    return _DASHES[index // PLAIN_ARMS % len(_DASHES)]


def arm_marker(index: int) -> str | None:
    """Marker of arm `index` as matplotlib takes it, None for the plain arms."""
    return _MARKERS[index // PLAIN_ARMS % len(_MARKERS)]


def arm_hatch(index: int) -> str | None:
    """Hatch of the bar of arm `index` as matplotlib takes it, None for the plain arms."""
    return _HATCHES[index // PLAIN_ARMS % len(_HATCHES)]


def swatch(index: int) -> str:
    """Arm `index` in a legend of the page, as HTML: a dot for the plain arms, else a piece of its line."""
    round_, colour = index // PLAIN_ARMS, index % len(ARM_COLOURS)
    if round_ == 0:
        return f'<i style="--c:var(--arm-{colour})"></i>'
    dash, marker = _SWATCH_DASHES[round_ % len(_SWATCH_DASHES)], _SWATCH_MARKERS[round_ % len(_SWATCH_MARKERS)]
    return (
        f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true" style="--c:var(--arm-{colour})">'
        f'<path d="M1 5H25" stroke-dasharray="{dash}"></path><path class="marker" d="{marker}"></path></svg>'
    )
