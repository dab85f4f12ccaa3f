"""The live page's answers: rows that are new, filters and pages, hostile data, requests and names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from lecritique.analysis import arm_style
from lecritique.core.errors import DataError
from lecritique.viewing import app
from lecritique.viewing.app import ViewApp, own_asset
from lecritique.viewing.sources import find_runs
from tests.unit.analysis.make_runs import make_comparison, make_rollouts, make_run, write_parquet

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028\u202e'


def client(directory, host="127.0.0.1", name="127.0.0.1:8124") -> TestClient:
    return TestClient(ViewApp(Path(directory), host=host).asgi, base_url=f"http://{name}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory with a comparison and a run."""
    directory = tmp_path_factory.mktemp("runs")
    make_comparison(directory / "first", arms={"pvf": {"ev": 0.5}, "mean": {"ev": None}}, seeds=(0, 1), steps=40)
    make_run(directory / "more" / "long", arm="tether", steps=30, rho=0.4, state="running", planned=90)
    return directory


@pytest.fixture(scope="module")
def page(runs):
    return client(runs)


def test_the_overview_names_every_run_by_its_path(page):
    found = page.get("/api/overview").json()
    keys = [run["key"] for run in found["runs"]]
    assert keys == [*(f"first/{arm}/seed-{seed}" for arm in ("pvf", "mean") for seed in (0, 1)), "more/long"]
    assert found["runs"][-1]["state"] == "running" and found["runs"][-1]["planned"] == 90
    assert found["problems"] == [] and found["pending"] == 0
    names = [metric["name"] for metric in found["metrics"]]
    assert {"reward", "explained_variance", "rho"} <= set(names)
    assert next(m for m in found["metrics"] if m["name"] == "reward")["role"] == "rollout"


def test_only_rows_after_a_step_are_sent(page):
    answer = page.get("/api/rows", params={"run": "more/long", "metric": ["reward", "rho"], "after": 26}).json()
    assert answer["steps"] == [27, 28, 29] and set(answer["columns"]) == {"reward", "rho"}
    assert all(len(column) == 3 for column in answer["columns"].values()) and answer["drop_from"] is None
    everything = page.get("/api/rows", params={"run": "more/long", "metric": "reward"}).json()
    assert (
        everything["steps"] == list(range(30)) and everything["columns"]["reward"][27:] == answer["columns"]["reward"]
    )


def test_trajectories_are_filtered_and_paged_by_the_server(page):
    query = {"run": "first/pvf/seed-0", "least_reward": "0.5", "size": "3", "page": "1", "order": "newest"}
    answer = page.get("/api/trajectories", params=query).json()
    assert len(answer["rows"]) == 3 and answer["total"] > 6
    assert all(row["run"] == "first/pvf/seed-0" and row["reward"] >= 0.5 for row in answer["rows"])
    whole = page.get("/api/trajectories", params=query | {"size": "200", "page": "0"}).json()
    assert whole["rows"][3:6] == answer["rows"] and whole["total"] == len(whole["rows"])


def test_a_trajectory_comes_with_its_group_on_one_scale(page):
    row = page.get("/api/trajectories", params={"run": "first/pvf/seed-0", "size": 1}).json()["rows"][0]
    answer = page.get("/api/trajectory", params={"run": row["run"], "step": row["step"], "row": row["index"]}).json()
    sample = answer["sample"]
    assert sample["id"] == row["id"] and sample["reward"] == row["reward"] and sample["context"]
    assert sum(sample["action"]) == row["tokens"] and answer["prompt"].startswith("<|user|>")
    largest = max(abs(value) for value in sample["advantage"] if value is not None)
    assert largest == pytest.approx(row["advantage"], abs=1e-4)
    group, attempt, _ = sample["id"].split(".")
    assert [s["id"] for s in answer["siblings"]] == [f"{group}.{attempt}.{member}" for member in range(4)]
    assert [s["own"] for s in answer["siblings"]].count(True) == 1 and answer["members"] == 4
    assert answer["scale"]["advantage"] >= largest


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/rows?run=../more/long&metric=reward", "there is no run '../more/long'"),
        ("/api/rows?run=first/../more/long&metric=reward", "there is no run"),
        ("/api/rows?run=/etc&metric=reward", "there is no run '/etc'"),
        ("/api/rows?run=%00&metric=reward", "there is no run"),
        ("/api/rows?run=more/long", "'metric' is given 0 times"),
        ("/api/rows?run=more/long&metric=reward&after=x", "'after' is 'x', expected a whole number from -1"),
        ("/api/rows?run=more/long&metric=reward&after=99999999999999999999", "'after' is"),
        ("/api/trajectories?order=../x", "'order' is '../x', expected one of advantage"),
        ("/api/trajectories?page=-1", "'page' is '-1'"),
        ("/api/trajectories?size=201", "'size' is 201, expected at most 200"),
        ("/api/trajectories?size=0", "'size' is '0'"),
        ("/api/trajectories?least_reward=nan", "'least_reward' is 'nan', expected a number"),
        ("/api/trajectories?seed=one", "'seed' is 'one'"),
        ("/api/trajectory?run=more/long&step=20", "'row' is ''"),
        ("/api/trajectory?run=more/long&step=20&row=4000", "have no row 4000"),
        ("/api/trajectory?run=more/long&step=../20&row=1", "'step' is '../20'"),
        ("/api/trajectory?run=more/long&step=21&row=0", "step 21 of 'more/long' has no saved rollouts"),
        ("/assets/app.py", "no such page"),
        ("/assets/..%2Fapp.py", "no such page"),
        ("/assets/%2e%2e/%2e%2e/core/errors.py", "no such page"),
        ("/more/long/config.json", "no such page"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(page, path, words):
    answer = page.get(path)
    assert 400 <= answer.status_code < 500 and words in answer.json()["error"], answer.text
    assert answer.headers["content-type"] == "application/json"


def test_nothing_is_written_and_other_methods_are_refused(page):
    for path in ("/", "/api/overview", "/api/rows"):
        assert page.post(path).status_code == 405 and page.delete(path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/assets/view.js", "/assets/page.css", "/api/overview", "/api/rows"])
def test_every_answer_carries_the_policy_that_keeps_others_out(page, path):
    headers = page.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" and policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_the_page_loads_its_own_assets_alone(page):
    html = page.get("/").text
    asked = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(asked) == {"data:,", *(f"/assets/{name}" for name in app._ASSETS)}
    for name in app._ASSETS:
        answer = page.get(f"/assets/{name}")
        assert answer.status_code == 200 and "http" not in answer.text.replace("http-equiv", "")
        assert answer.headers["content-type"].startswith("text/")
    assert not re.search(r"<script>|<style|style=|onclick|onload", html)
    own = {file.name for file in Path(app.__file__).parent.iterdir() if file.suffix in (".js", ".css")}
    assert own == set(app._ASSETS) - app._OF_ANALYSIS


def test_modules_import_each_other_and_nothing_else():
    imported = {name: set(re.findall(r'from "\./(.+?)"', own_asset(name))) for name in app._MODULES}
    assert all("import(" not in own_asset(name) for name in app._MODULES)
    reached = {"view.js"}
    for _ in app._MODULES:
        reached |= {name for of in reached for name in imported[of]}
    assert reached == set(app._MODULES)


def test_arms_beyond_the_colours_are_dashed_as_in_the_report():
    (dashes,) = re.findall(r"const DASHES = (\[.*\]);", own_asset("arms.js"))
    assert tuple(json.loads(dashes)) == arm_style._SWATCH_DASHES and len(set(arm_style._SWATCH_DASHES)) == 4
    colours, plain = len(arm_style.ARM_COLOURS), arm_style.PLAIN_ARMS
    assert f"ARM_COLOURS = {colours}, PLAIN_ARMS = {plain};" in own_asset("arms.js")
    assert '"stroke-dasharray": arm.dash' in own_asset("curves.js")


def test_scripts_write_data_as_text_alone():
    for source in (*map(own_asset, app._MODULES), own_asset("curves.js"), app.page.asset("tokens.js")):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", source)


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8124", 200),
        ("127.0.0.1", "localhost:1", 200),
        ("127.0.0.1", "[::1]:8124", 200),
        ("127.0.0.1", "evil.example", 421),
        ("127.0.0.1", "127.0.0.1.evil.example:8124", 421),
        ("127.0.0.1", "192.168.1.7", 421),
        ("0.0.0.0", "192.168.1.7:8124", 200),
        ("0.0.0.0", "evil.example", 421),
        ("box.example", "box.example", 200),
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(runs, host, name, status):
    asked = client(runs, host=host, name=name)
    for path in ("/", "/assets/view.js", "/api/overview"):
        answer = asked.get(path)
        assert answer.status_code == status
        assert status == 200 or "does not go by that name" in answer.json()["error"]


def test_a_request_without_a_name_is_refused(runs):
    assert client(runs).get("/api/overview", headers={"Host": ""}).status_code == 421


def test_hostile_text_leaves_as_json_that_no_parser_takes_for_a_page(tmp_path):
    rows = make_rollouts(np.random.default_rng(0), step=1, arm="a", ev=0.5, rollouts=4, texts=(HOSTILE, "x" * 10_000))
    rows = [
        row | {"task_id": HOSTILE, "prompt": HOSTILE, "context": HOSTILE * 10_000, "status": HOSTILE} for row in rows
    ]
    path = make_run(tmp_path, steps=2)
    write_parquet(path / "rollouts" / "step-00001.parquet", rows)
    (path / "config.json").write_text(json.dumps({"preset": HOSTILE, "run": {"seed": 10**30}}))
    page = client(path)
    listed = page.get("/api/trajectories", params={"text": "<script>"})
    assert listed.json()["rows"][0]["task"] == HOSTILE and listed.json()["total"] == 4
    opened = page.get("/api/trajectory", params={"run": ".", "step": 1, "row": 0})
    assert HOSTILE in opened.json()["sample"]["text"]
    assert len(opened.content) < 200_000 and "further characters" in opened.json()["sample"]["context"]
    for answer in (listed, opened, page.get("/api/overview")):
        assert answer.headers["content-type"] == "application/json" and answer.content.isascii()


@pytest.mark.parametrize("status", ["[]", '{"state": 7, "step": NaN, "steps": "x", "updated": {"a": 1}}', "\x00", ""])
def test_a_damaged_status_is_named_or_read_around(tmp_path, status):
    path = make_run(tmp_path, steps=3)
    (path / "status.json").write_text(status)
    answer = client(path).get("/api/overview")
    (run,) = answer.json()["runs"]
    assert answer.status_code == 200 and run["newest"] == 2
    assert run["problems"] == answer.json()["problems"]


def test_a_damaged_run_is_named_and_the_others_are_served(tmp_path):
    make_run(tmp_path / "good", steps=3)
    make_comparison(tmp_path / "cmp", arms={"pvf": {}, "mean": {}}, seeds=(0,), steps=3)
    (tmp_path / "cmp" / "pvf" / "seed-0" / "metrics.jsonl").write_text('{"step": "no"}\n')
    (tmp_path / "cmp" / "mean" / "seed-0" / "config.json").write_text("{")
    make_run(tmp_path / "torn", steps=3)
    (tmp_path / "torn" / "config.json").write_text("nothing")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "compare.json").write_text('{"schema": 1, "arms": ["../../x"], "seeds": [0]}')
    found = client(tmp_path).get("/api/overview").json()
    assert [run["key"] for run in found["runs"]] == ["cmp/pvf/seed-0", "cmp/mean/seed-0", "good"]
    told = " ".join(found["problems"])
    assert "torn/config.json" in told and "not a plain directory name" in told and "step is 'no'" in told
    assert [run["newest"] for run in found["runs"]] == [None, 2, 2]


def test_a_comparison_that_has_not_begun_is_viewed_and_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "_LOOK_AGAIN_SECONDS", 0.0)
    make_comparison(tmp_path, arms={}, seeds=(0,))
    (tmp_path / "compare.json").write_text(json.dumps({"schema": 1, "arms": ["pvf"], "seeds": [0, 1]}))
    page = client(tmp_path)
    assert page.get("/api/overview").json()["pending"] == 2
    assert page.get("/api/trajectories").json()["saved"] == 0
    make_run(tmp_path / "pvf" / "seed-1", steps=4, save_every=2)
    found = page.get("/api/overview").json()
    assert found["pending"] == 1 and found["runs"][0]["newest"] == 3
    assert page.get("/api/trajectories").json()["saved"] == 64


def test_a_directory_that_goes_away_is_said_to_be_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "_LOOK_AGAIN_SECONDS", 0.0)
    make_run(tmp_path / "a" / "run", steps=3)
    page = client(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    answer = page.get("/api/overview").json()
    assert answer["runs"] == [] and "there is no directory" in answer["problems"][0]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_a_directory_without_runs_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(DataError, match=r"no directory|holds no run"):
        find_runs(tmp_path / "x")


def test_the_search_for_runs_goes_three_folders_deep(tmp_path):
    make_run(tmp_path / "a" / "b" / "c", steps=1)
    make_run(tmp_path / "a" / "b" / "d" / "e", steps=1)
    make_run(tmp_path / ".hidden", steps=1)
    assert list(find_runs(tmp_path).runs) == ["a/b/c"]


def test_the_page_needs_no_heavy_package():
    code = (
        "import sys, lecritique.viewing.server\n"
        "assert 'starlette' in sys.modules\n"
        "print(*{'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done


def test_a_link_that_leads_up_shows_no_run_twice(tmp_path):
    make_run(tmp_path / "own", steps=2)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path / "own")
    assert sorted(find_runs(tmp_path).runs) == ["alias", "own"]


@pytest.mark.parametrize("declared", [{"arms": ["mean", "x" * 300]}, {"seeds": [0, 10**300]}])
def test_a_name_that_no_folder_can_have_is_a_run_that_has_not_started(tmp_path, declared):
    path = make_comparison(tmp_path, arms={"mean": {"ev": None}}, seeds=(0,), steps=3)
    record = json.loads((path / "compare.json").read_text()) | declared
    (path / "compare.json").write_text(json.dumps(record))
    found = find_runs(path)
    assert list(found.runs) == ["mean/seed-0"] and found.pending == 1 and not found.problems


def test_a_column_of_another_kind_is_a_sentence_not_a_failure(tmp_path):
    path = make_run(tmp_path / "own", steps=2, save_every=1)
    file = next((path / "rollouts").glob("*.parquet"))
    table = pq.read_table(file)
    for name in ("step", "value_version", "segment_index", "turn_index"):
        nan = float("nan")
        column = pa.array([[nan] if name == "turn_index" else nan] * len(table))
        pq.write_table(table.set_column(table.column_names.index(name), name, column), file)
        page = client(tmp_path)
        step = int(file.stem.removeprefix("step-"))
        answer = page.get("/api/trajectory", params={"run": "own", "step": step, "row": 0})
        assert answer.status_code == 404 and f"column {name} is" in answer.json()["error"], name
        assert page.get("/api/trajectories").status_code == 200
