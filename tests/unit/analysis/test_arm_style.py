"""Arms that can be told apart: by colour against the page and each other, then also by dash, marker and hatch."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lecritique.analysis import page
from lecritique.analysis.arm_style import ARM_COLOURS, PLAIN_ARMS, arm_colour, arm_dash, arm_hatch, arm_marker, swatch

# Linear sRGB to the cone responses and the axes of OKLab (Ottosson 2020).
_CONES = np.array(
    [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]],
)
_AXES = np.array(
    [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]],
)


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG's contrast ratio."""
    one, other = (float(linear(c) @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (a, b))
    return max(one, other) / min(one, other)


def distance(a: str, b: str) -> float:
    one, other = (_AXES @ np.cbrt(_CONES @ linear(c)) for c in (a, b))
    return float(np.linalg.norm(one - other))


def themes() -> dict[str, dict[str, str]]:
    light, dark = page.asset("page.css").split("@media (prefers-color-scheme: dark)")[:2]
    found = {}
    for name, css in (("light", light), ("dark", dark.split("* {")[0])):
        found[name] = dict(re.findall(r"--([a-z]+(?:-\d+)?): (#[0-9a-f]{6});", css))
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out_from_the_page_and_from_each_other(theme):
    variables = themes()[theme]
    colours = [variables[f"arm-{i}"] for i in range(len(ARM_COLOURS))]
    assert f"arm-{len(ARM_COLOURS)}" not in variables
    assert all(contrast(c, variables[ground]) >= 2.1 for c in colours for ground in ("paper", "panel"))
    assert all(contrast(c, variables["panel"]) >= 3 for c in colours[PLAIN_ARMS:])
    nearest = min(distance(a, b) for i, a in enumerate(colours) for b in colours[:i])
    assert nearest > 0.095


def test_the_page_has_the_colours_of_figures():
    assert [themes()["light"][f"arm-{i}"] for i in range(len(ARM_COLOURS))] == list(ARM_COLOURS)


def test_no_two_of_many_arms_look_alike():
    lines = [(arm_colour(i), str(arm_dash(i)), arm_marker(i)) for i in range(36)]
    assert len(set(lines)) == 36
    assert len({(arm_colour(i), arm_hatch(i)) for i in range(24)}) == 24
    assert len({swatch(i) for i in range(36)}) == 36
    assert len({arm_colour(i) for i in range(12)}) == 12
    assert all(arm_dash(i) == "-" and arm_marker(i) is None and arm_hatch(i) is None for i in range(PLAIN_ARMS))
    assert arm_dash(PLAIN_ARMS) != "-" and arm_hatch(PLAIN_ARMS) is not None
