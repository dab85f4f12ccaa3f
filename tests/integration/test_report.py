"""The report page and picture: self-contained, escaped, and standing up to whatever a directory holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from lecritique.analysis.figures import ARM_COLOURS
from lecritique.analysis.read import load_comparison
from lecritique.analysis.report import write_picture, write_report
from lecritique.analysis.summary import comparison_summary
from lecritique.analysis.tables import ARM_COLOUR_COUNT
from lecritique.core.errors import ConfigurationError, DataError
from tests.unit.analysis.make_runs import make_comparison, make_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SCRIPTS = 2  # the record of the tokens, and the page's own
FIGURES = (
    "Reward while training", "Reward at the end", "Reward against mean", "How well the critic predicts returns",
    "Explained variance at the end", "Where in the response the critic knows", "In which turn the critic knows",
    "How far Tether trusts the critic", "Reward by rollouts", "Reward by generated tokens", "Reward by time",
    "Response length", "Entropy, estimated", "Gradient norm of the policy",
)  # fmt: skip
VOID = {"meta", "img", "br", "path", "use", "circle", "rect", "link"}


class Page(HTMLParser):
    """Collects tags, attributes and visible text, and checks that elements nest."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == [], f"unclosed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(directory, **arguments):
    html = write_report(directory, **arguments).read_text(encoding="utf-8")
    return html, Page(html)


@pytest.fixture(scope="module")
def comparison_dir(tmp_path_factory):
    return make_comparison(tmp_path_factory.mktemp("cmp"), steps=45, save_every=15)


def test_one_file_that_needs_nothing_from_outside(comparison_dir):
    html, page = page_of(comparison_dir)
    assert "http" not in html and "//cdn" not in html and "@import" not in html
    assert not {"link", "iframe", "object", "embed"} & set(page.tags)
    for name, value in page.attributes:
        assert name != "src" and (name != "href" or value.startswith("#")), (name, value)
    assert page.tags.count("svg") == len(FIGURES) and page.tags.count("script") == SCRIPTS
    assert all(title in page.text for title in FIGURES)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", html)) | {v[1:] for n, v in page.attributes if n == "href"}
    assert used <= set(ids)


def test_the_page_says_the_numbers_of_the_summary(comparison_dir):
    _, page = page_of(comparison_dir)
    summary = comparison_summary(load_comparison(comparison_dir))
    for arm in summary["arms"].values():
        assert f"{sum(arm['reward_last']) / 3:.3f}" in page.text
        assert all(f"{value:.3f}" in page.text for value in arm["reward_last"])
    for words in ("pvf reached the highest reward", "0.400 before training", "block bootstrap over steps inside"):
        assert words in page.text
    assert "No significance is claimed from fewer than three seeds" in page.text
    assert "critic.context" in page.text and "run.seed" not in page.text


def test_two_writes_are_the_same_bytes(comparison_dir, tmp_path):
    first, _ = page_of(comparison_dir, out=tmp_path / "a.html")
    second, _ = page_of(comparison_dir, out=tmp_path / "deep" / "b.html")
    assert first == second


def test_figures_take_the_colours_of_the_page(comparison_dir):
    html, _ = page_of(comparison_dir)
    figures = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert "var(--arm-0)" in figures and "var(--ink)" in figures
    assert not any(colour in figures for colour in ARM_COLOURS)
    style = html[html.index("<style>") : html.index("</style>")]
    for index, colour in enumerate(ARM_COLOURS):
        assert style.count(f"--arm-{index}:") == 2 and f"--arm-{index}: {colour};" in style
    assert len(ARM_COLOURS) == ARM_COLOUR_COUNT


def test_hostile_text_stays_text(tmp_path):
    arms = {HOSTILE.replace("/", "|"): {}, "$x^{2$": {"ev": None}, "_hidden": {}}
    path = make_comparison(
        tmp_path, arms=arms, seeds=(0,), steps=6, save_every=3, recipe=HOSTILE,
        texts=(HOSTILE, "\x00\x1b[31m", "\u2028", "", "{{", "漢"),
    )  # fmt: skip
    status = path / "_hidden" / "seed-0" / "status.json"
    status.write_text(json.dumps({"state": HOSTILE, "message": HOSTILE + "\ud800", "updated": HOSTILE}))
    html, page = page_of(path)
    assert page.tags.count("script") == SCRIPTS and "img" not in page.tags
    assert "<script>alert" not in html and "<img" not in html
    assert HOSTILE in page.text
    record = json.loads(re.search(r'id="token-data">(.*?)</script>', html, flags=re.DOTALL).group(1))
    assert HOSTILE in record["arms"][0]["samples"][0]["text"]
    write_picture(path, tmp_path / "picture.png")


LONG = "privileged-value-function-" * 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"arms": {"only": {"gain": 0.3}}}, "only reached a reward of"),
        ({"arms": {"mean": {"ev": None}, "loo": {"ev": None}}}, "There is no critic here"),
        ({"arms": {LONG: {}, LONG + "2": {}}}, LONG + "2"),
        ({"seeds": (7,)}, "One seed: there is no band"),
        ({"base": None}, "Reward at the end"),
        ({"steps": 1}, "Reward while training"),
        ({"steps": 2, "planned": 90, "state": "running"}, "2 of 90 steps"),
        ({"steps": 0, "planned": 90, "state": "running"}, "Nothing has been measured yet"),
        ({"save_every": 1000}, "No rollouts have been saved yet"),
        ({"arms": {f"a{i}": {} for i in range(11)}, "seeds": (0,)}, "11 arms"),
    ],
)
def test_the_page_holds_up(tmp_path, settings, words):
    path = make_comparison(tmp_path, **{"steps": 8, "save_every": 4, **settings})
    _, page = page_of(path)
    assert words in page.text
    assert "nan" not in page.text.lower().split() and "None" not in page.text
    png = write_picture(path, tmp_path / "picture.png")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_single_run_has_a_page(tmp_path):
    _, page = page_of(make_run(tmp_path / "my-run", steps=12, save_every=6))
    assert "my-run · run" in page.text and "Paired differences" not in page.text
    assert "Ablation table" not in page.text and "Reward against" not in page.text


def test_missing_and_failed_arms_are_named(tmp_path):
    path = make_comparison(tmp_path, arms={"a": {}, "b": {}, "c": {}}, seeds=(0,), steps=6, save_every=3)
    make_run(path / "b" / "seed-0", arm="b", steps=2, state="failed")
    (path / "c" / "seed-0" / "config.json").unlink()
    _, page = page_of(path)
    assert "1 of 3 runs not started" in page.text and "1 of 3 runs failed: b seed 0" in page.text


def test_explained_variance_far_below_zero_does_not_break_the_page(tmp_path):
    html, page = page_of(make_comparison(tmp_path, arms={"a": {"ev": -40.0}, "b": {"ev": 0.5}}, seeds=(0, 1), steps=9))
    assert re.search(r"\u2212[34]\d\.\d{3}", page.text), "the number itself is told"
    assert "runs off the lower edge" in page.text and "nan" not in "".join(re.findall(r' d="([^"]*)"', html))


def test_damaged_rollouts_are_left_out_and_said_damaged_metrics_refused(tmp_path):
    path = make_run(tmp_path, steps=12, save_every=4)
    (path / "rollouts" / "step-00012.parquet").write_bytes(b"half of a")
    _, page = page_of(path)
    assert "Left out:" in page.text and "step-00012.parquet" in page.text and "sudoku4/" not in page.text
    (path / "metrics.jsonl").write_text('{"step": 0}\nnonsense\n{"step": 1}\n')
    with pytest.raises(DataError, match="line 2"):
        write_report(path)


VP = {
    "ppo": {"more": {"explained_variance_post_update": 0.3, "dropped_fraction": 0.01, "value_clip_fraction": 0.02}},
    "vaspo": {"more": {"fusion_strength": 0.1, "gate_open_fraction": 0.3, "modulation_weight_mean": 1.01}},
    "opsd": {"ev": None, "more": {"opsd_divergence": 0.5, "teacher_gap_abs_nats": 0.0}},
}


def test_arms_with_different_metrics_share_a_page(tmp_path):
    _, page = page_of(make_comparison(tmp_path, arms=VP, seeds=(0, 1), steps=9, save_every=3), reference="vaspo")
    for title in ("Fusion strength", "Open gates", "Distillation divergence", "The critic before and after its update"):
        assert title in page.text
    assert "Reward against vaspo" in page.text and "paired difference from vaspo" in page.text
    assert "on which the fusion gate is open. Not recorded by ppo, opsd." in page.text
    assert "Never moved, so not drawn: Size of the teacher gap (0.000)." in page.text


def test_an_unknown_reference_arm_is_named(tmp_path):
    path = make_comparison(tmp_path, arms={"ppo": {}, "vaspo": {}}, seeds=(0,), steps=3)
    with pytest.raises(ConfigurationError, match=r"no arm 'vasp'\. Did you mean 'vaspo'"):
        write_report(path, reference="vasp")


def test_many_arms_differ_in_more_than_colour(tmp_path):
    arms = {f"arm-{i}": {} for i in range(9)}
    html, _ = page_of(make_comparison(tmp_path, arms=arms, seeds=(0, 1), steps=12, save_every=6))
    legend = re.search(r'<nav class="legend".*?</nav>', html).group()
    looks = re.findall(r'<span class="arm">(.*?)<span>', legend)
    assert len(looks) == len(set(looks)) == 9
    curve = re.search(r'aria-label="Reward while training".*?</svg>', html, flags=re.DOTALL).group()
    assert "stroke-dasharray" in curve and curve.count("var(--arm-7)") > curve.count("var(--arm-3)") > 0
    bars = re.search(r'aria-label="Reward at the end".*?</svg>', html, flags=re.DOTALL).group()
    assert bars.count("<pattern") == 2, "arms eight and nine have hatched bars"
