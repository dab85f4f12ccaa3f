"""The report of pretrain-value: curves, the end with its interval, and folders that are unfinished or damaged."""

from __future__ import annotations

import json

import pytest

from lecritique.analysis.pretraining_figures import SETTINGS, SUMMARY, load_pretraining, pretraining_plots
from lecritique.analysis.report import write_figures, write_report
from lecritique.core.errors import DataError
from lecritique.runtime import pretraining_plan


def make_folder(path, *, variants=("clean", "privileged"), finished=("clean", "privileged"), summary=True):
    path.mkdir()
    (path / SETTINGS).write_text(json.dumps({"wanted": {"variants": list(variants)}}))
    for shift, name in enumerate(finished):
        curve = [
            {
                "update": n, "explained_variance": None if n == 0 else 0.1 * n + 0.2 * shift, "bias": 0.0, "mse": 0.2,
                "loss": 0.6, "train_loss": None if n == 0 else 0.5, "seconds": 1.0 * n,
            }
            for n in range(3)
        ]  # fmt: skip
        (path / name).mkdir()
        (path / name / "curve.json").write_text(json.dumps(curve))
    if summary:
        ends = {"clean": (0.2, 0.1, 0.3), "privileged": (0.4, 0.3, 0.5)}
        intervals = {
            name: {"estimate": e, "low": low, "high": high, "problems": 40} for name, (e, low, high) in ends.items()
        }
        record = {
            "variants": {name: {"explained_variance": interval} for name, interval in intervals.items()},
            "privileged_minus_clean": {"estimate": 0.2, "low": 0.15, "high": 0.25, "problems": 40},
        }
        (path / SUMMARY).write_text(json.dumps(record))
    return path


def test_the_files_are_those_that_the_command_writes():
    assert (SETTINGS, SUMMARY) == (pretraining_plan.SETTINGS, pretraining_plan.SUMMARY)


def test_curves_and_ends_stand_on_the_page_and_in_files(tmp_path):
    path = make_folder(tmp_path / "critics")
    html = write_report(path).read_text()
    for words in (
        "The privileged critic explains 0.400",
        "+0.200 (95% interval +0.150 to +0.250",
        "40 held-out problems",
    ):
        assert words in html
    assert html.count("<svg role") == 5 and "critics · pretraining" in html
    plots = {plot.name: plot for plot in pretraining_plots(load_pretraining(path))}
    points = [(row.arm, row.x, row.y) for row in plots["pretraining-explained-variance"].rows]
    approx = pytest.approx
    assert points == [
        ("clean", 1, 0.1),
        ("clean", 2, 0.2),
        ("privileged", 1, approx(0.3)),
        ("privileged", 2, approx(0.4)),
    ]
    written = {p.name for p in write_figures(path, tmp_path / "out")}
    assert {"pretraining-loss.png", "pretraining-bars.csv"} <= written


def test_an_unfinished_folder_shows_what_there_is(tmp_path):
    html = write_report(make_folder(tmp_path / "a", finished=("clean",), summary=False)).read_text()
    assert "Critics that are being fitted" in html and "The critics are not all fitted yet" in html
    html = write_report(make_folder(tmp_path / "b", finished=(), summary=False)).read_text()
    assert "Nothing has been measured yet" in html and "No critic is finished" in html


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("nonsense", "cannot be read as JSON"),
        ('{"a": 1}', "expected a list of points"),
        ('[{"update": null}]', "point 0"),
    ],
)
def test_a_damaged_curve_is_named(tmp_path, content, match):
    path = make_folder(tmp_path / "a")
    (path / "clean" / "curve.json").write_text(content)
    with pytest.raises(DataError, match=match):
        write_report(path)


def test_hostile_names_and_numbers_stay_text(tmp_path):
    name = "<img src=x>"
    path = make_folder(tmp_path / "a", variants=(name, "../../etc"), finished=(name,), summary=False)
    (path / SUMMARY).write_text(json.dumps({"variants": {name: {"explained_variance": {"estimate": "x"}}, "b": 3}}))
    assert "<img" not in write_report(path).read_text()
