"""Figures as files: what is written, what is refused, and that a directory of ours is filled again."""

from __future__ import annotations

import csv
import json

import pytest

from lecritique.analysis.exported_figures import INDEX, PAGE, export_figures, tidy_csv
from lecritique.analysis.figures import Plot, Row
from lecritique.analysis.read import load_comparison
from lecritique.analysis.report import write_figures
from lecritique.core.errors import ConfigurationError, DataError
from tests.unit.analysis.make_runs import make_comparison

HOSTILE = '"><script>alert(1)</script>,\n=1'


def plot(name, y=0.5, arm="a"):
    return Plot(
        name=name, title=HOSTILE, caption=HOSTILE, absent="", draw=lambda ax: ax.plot([0, 1], [0, y]),
        rows=[Row(arm=arm, seed=0, x=1.0, y=y), Row(arm=arm, x="", y=float("nan"), low=0.25)], arms=((0, arm),),
    )  # fmt: skip


def table_only():
    return Plot(name="numbers", title="t", caption="", absent="", draw=None, rows=[Row(arm="a", x=0.0, y=1.0)])


def test_each_figure_is_a_png_and_a_csv_with_an_index(tmp_path):
    out = tmp_path / "deep" / "figures"
    empty = Plot(name="empty", title="", caption="", absent="", draw=None, rows=[])
    written = export_figures([plot("one"), plot("two"), table_only(), empty], out, source=HOSTILE)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in written)
    assert {p.name for p in written} == {"one.png", "one.csv", "two.png", "two.csv", "numbers.csv", INDEX, PAGE}
    assert (out / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    record = json.loads((out / INDEX).read_text())
    assert [figure["name"] for figure in record["figures"]] == ["one", "two", "numbers"]
    page = (out / PAGE).read_text()
    assert "<script" not in page and 'src="one.png"' in page and 'href="numbers.csv"' in page


def test_csv_is_tidy_and_survives_any_name():
    rows = list(csv.DictReader(tidy_csv(plot("x", arm=HOSTILE + "\ud800").rows).splitlines(keepends=True)))
    assert [row["arm"] for row in rows] == [HOSTILE + "?"] * 2
    assert rows[0] | {"arm": ""} == {
        "arm": "", "series": "", "seed": "0", "x": "1.0", "y": "0.5", "low": "", "high": "", "unsmoothed": "",
    }  # fmt: skip
    assert rows[1]["seed"] == rows[1]["y"] == "" and rows[1]["low"] == "0.25"


def test_our_own_directory_is_filled_again_and_other_files_stay(tmp_path):
    export_figures([plot("one"), plot("old")], tmp_path, source="s")
    (tmp_path / "notes.txt").write_text("mine")
    export_figures([plot("one", 0.75), plot("new")], tmp_path, source="s")
    assert "0.75" in (tmp_path / "one.csv").read_text() and (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "new.png").exists() and not (tmp_path / "old.png").exists()


def test_nothing_foreign_is_overwritten(tmp_path):
    (tmp_path / "one.csv").write_text("mine")
    with pytest.raises(ConfigurationError, match="not empty and holds no export"):
        export_figures([plot("one")], tmp_path, source="s")
    ours = tmp_path / "ours"
    export_figures([plot("one")], ours, source="s")
    (ours / "two.csv").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"two\.csv' was not written by an earlier export"):
        export_figures([plot("one", 0.75), plot("two")], ours, source="s")
    assert (ours / "two.csv").read_text() == "mine" and "0.5" in (ours / "one.csv").read_text()
    with pytest.raises(ConfigurationError, match="is a file"):
        export_figures([plot("one")], ours / "two.csv", source="s")


@pytest.mark.parametrize("names", [["../outside.csv"], ["a/b.png"], [3], "one.csv"])
def test_an_index_that_names_other_places_is_refused(tmp_path, names):
    victim = tmp_path / "outside.csv"
    victim.write_text("mine")
    out = tmp_path / "out"
    export_figures([plot("one")], out, source="s")
    record = json.loads((out / INDEX).read_text()) | {"files": names}
    (out / INDEX).write_text(json.dumps(record))
    with pytest.raises(DataError, match="expected the names of exported figures"):
        export_figures([plot("one")], out, source="s")
    assert victim.read_text() == "mine"


def test_the_figures_of_a_comparison_hold_its_metrics(tmp_path):
    path = make_comparison(
        tmp_path / "cmp", arms={"mean": {"ev": None}, "pvf": {}}, seeds=(0, 1), steps=6, save_every=3
    )
    written = write_figures(path, tmp_path / "out", reference="pvf")
    assert {p.stem for p in written if p.suffix == ".png"} >= {
        "reward-curve", "reward-bars", "reward-differences", "reward-by-seconds", "explained-variance-curve",
        "explained-variance-bars", "explained-variance-by-position", "explained-variance-by-turn", "sampled-surprise",
    }  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out" / "reward-curve.csv").open()))
    series = load_comparison(path).runs["pvf", 1].series("reward")
    assert [float(r["y"]) for r in rows if (r["arm"], r["seed"]) == ("pvf", "1")] == series.tolist()
    table = list(csv.DictReader((tmp_path / "out" / "ablation-table.csv").open()))
    assert ("mean", "reward, last steps minus pvf") in {(r["arm"], r["series"]) for r in table}
