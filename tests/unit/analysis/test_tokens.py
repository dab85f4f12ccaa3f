"""Which samples the token view picks and what it says of them."""

from __future__ import annotations

import json

import numpy as np

from lecritique.analysis.headline import headline
from lecritique.analysis.page import embedded
from lecritique.analysis.read import load_comparison
from lecritique.analysis.saved_rollouts import read_rollouts
from lecritique.analysis.tokens import LONGEST_SHOWN_TOKENS, pick_samples, token_view
from lecritique.analysis.wording import number, shortened
from tests.unit.analysis.make_runs import make_comparison, make_rollouts, make_run, write_metrics, write_parquet


def table_of(tmp_path, rewards, sizes, **columns):
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=len(rewards))
    for row, reward, size in zip(rows, rewards, sizes, strict=True):
        # Off the action mask stands junk that must not count as an advantage.
        row["advantages"] = [size if act else 1e6 for act in row["action_mask"]]
        row |= {"reward": reward, **columns}
    write_parquet(tmp_path / "step-00001.parquet", rows)
    return read_rollouts(tmp_path / "step-00001.parquet")


def test_best_worst_largest_and_typical_are_four_rollouts(tmp_path):
    table = table_of(tmp_path, [1.0, 0.0, 0.4, 0.5, None, 1.0], [0.1, -0.2, -0.9, 0.0, 0.3, 0.2])
    picked = {kind: rollout.row * 4 + rollout.member for kind, _, rollout in pick_samples({0: table})}
    assert picked == {"best": 5, "worst": 1, "largest advantage": 2, "typical": 3}


def test_rows_without_advantages_or_rewards_do_not_break_the_choice(tmp_path):
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=None, rollouts=2)
    for row in rows:
        row |= {"advantages": None, "reward": None}
    write_parquet(tmp_path / "step-00001.parquet", rows)
    assert pick_samples({0: read_rollouts(tmp_path / "step-00001.parquet")}) == []


def test_the_record_has_a_column_entry_a_token_and_null_off_the_mask(tmp_path):
    make_comparison(tmp_path, arms={"pvf": {"ev": 0.5}, "mean": {"ev": None}}, seeds=(0,), steps=20)
    comparison = load_comparison(tmp_path)
    tables = {key: next(iter(run.rollouts())) for key, run in comparison.runs.items()}
    record = token_view(comparison, tables, "pvf")
    critic, plain = (arm["samples"][0] for arm in record["arms"])
    assert plain["value"] is None and critic["context"].startswith("the solved grid")
    for name in ("value", "advantage", "logprob"):
        assert [entry is not None for entry in critic[name]] == [bool(act) for act in critic["action"]]
    largest = max(abs(a) for arm in record["arms"] for s in arm["samples"] for a in s["advantage"] if a is not None)
    assert record["scale"]["advantage"] == largest
    json.dumps(record, allow_nan=False)


def test_long_trajectories_are_cut_and_said_to_be(tmp_path):
    path = make_run(tmp_path, steps=1, save_every=1, texts=("x",) * (LONGEST_SHOWN_TOKENS + 10))
    comparison = load_comparison(path)
    tables = {key: next(iter(run.rollouts())) for key, run in comparison.runs.items()}
    sample = token_view(comparison, tables, None)["arms"][0]["samples"][0]
    assert len(sample["text"]) == len(sample["value"]) == LONGEST_SHOWN_TOKENS
    assert sample["omitted"] > 10


def test_embedded_json_cannot_leave_its_script_element():
    hostile = ["</script><script>alert(1)</script>", "<!--", "]]>", "\u2028", "&lt;", "\ud800"]
    text = embedded(hostile)
    assert not set("<>&\u2028\ud800") & set(text)
    assert json.loads(text) == hostile


def test_the_headline_claims_no_more_than_the_interval(tmp_path):
    apart = make_comparison(tmp_path / "apart", arms={"good": {"gain": 0.4}, "bad": {"gain": 0.0}}, steps=60)
    assert headline(load_comparison(apart)).title.startswith("good reached the highest reward: 0.")
    two = make_comparison(tmp_path / "two", arms={"good": {"gain": 0.4}, "bad": {"gain": 0.0}}, steps=60, seeds=(0, 1))
    assert "not settled" in headline(load_comparison(two)).title
    assert "fewer than three seeds" in headline(load_comparison(two)).text
    same = make_comparison(tmp_path / "same", arms={"a": {}, "b": {}}, steps=60)
    for seed, difference in enumerate((0.1, -0.1, 0.02)):
        for arm, reward in (("a", 0.5 + difference), ("b", 0.5)):
            write_metrics(same / arm / f"seed-{seed}", [{"step": t, "reward": reward} for t in range(60)])
    found = headline(load_comparison(same))
    assert "not settled" in found.title and "may be chance" in found.text


def test_unfinished_failed_and_missing_runs_are_said(tmp_path):
    make_comparison(tmp_path, arms={"a": {}, "b": {}}, seeds=(0, 1), steps=6)
    make_run(tmp_path / "a" / "seed-0", arm="a", steps=3, planned=6, state="running")
    make_run(tmp_path / "a" / "seed-1", arm="a", seed=1, steps=6, state="diverged")
    (tmp_path / "b" / "seed-1" / "config.json").unlink()
    said = " ".join(headline(load_comparison(tmp_path)).cautions)
    for words in ("1 of 4 runs not started", "still running: a seed 0 (3 of 6 steps)", "diverged: a seed 1", "length"):
        assert words in said


def test_wording():
    assert [number(x) for x in (-0.25, None, float("nan"), 0.0, 1e-5)] == [
        "\u22120.250",
        "\u2013",
        "\u2013",
        "0.000",
        "1.00e\u221205",
    ]
    assert shortened("abcdefghij", 7) == "abc\u2026hij" and shortened("a\nb", 7) == "a?b"
