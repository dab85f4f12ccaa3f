"""`lecritique view` as a user starts it, and its page as a reader in a browser sees it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lecritique.runs.directory import RunDirectory
from lecritique.viewing.server import ViewServer
from tests.integration.chromium import Tab, tab
from tests.integration.command_line import call, finish, require_one_sentence, start
from tests.unit.analysis.make_runs import make_comparison, make_rollouts, make_run, write_parquet

HOSTILE = "<img src=x onerror='window.hurt=1'><script>window.hurt=1</script>"


@contextlib.contextmanager
def served(directory: Path, page: Tab) -> Iterator[str]:
    """The page over a directory; its address. The browser leaves it before the server ends."""
    server = ViewServer(directory)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        page.call("Page.navigate", url="about:blank")
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with tab() as page:
        page.resize(1280, 1000)
        yield page


@pytest.fixture
def page(browser: Tab) -> Iterator[Tab]:
    """A browser of which no script complained and that asked nobody but the server."""
    browser.said.clear()
    yield browser
    assert browser.complaints == []
    assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+|data:,", where) for where in browser.requested)


def test_a_reader_follows_a_run_that_is_training(page, tmp_path):
    run = tmp_path / "run"
    settings = ("run.steps=100000", "run.save_rollouts_every=2", "rollout.batch_size=8", "task.rows=64")
    training = start(
        "train", "demo", "--arm", "vaspo", "--out", str(run), *settings, "run.checkpoint_every=0", cwd=tmp_path
    )
    try:
        while not (run / "metrics.jsonl").exists():
            assert training.poll() is None, finish(training)
        with served(run, page) as address:
            page.open(f"{address}/#view=overview")
            # Opens a live run ...
            page.wait("/\\brunning\\b/.test(document.querySelector('#runs tbody')?.innerText)")
            page.wait("document.querySelectorAll('#curves figure svg').length >= 3")
            newest = "Number(document.querySelector('#runs tbody td:nth-child(4)').innerText.split('/')[0])"
            seen = page.see(newest)
            drawn = page.see("document.querySelector('#curves figure path[stroke-width=\"2.2\"]').getAttribute('d')")
            # ... sees new steps arrive, in numbers and as a curve ...
            page.wait(f"{newest} > {seen} + 1")
            page.wait(
                "document.querySelector('#curves figure path[stroke-width=\"2.2\"]').getAttribute('d') !== "
                + json.dumps(drawn)
            )
            # ... filters ...
            page.click("#tab-list")
            everything = int(page.wait("document.querySelector('#count').innerText.match(/of (\\d+) saved/)?.[1]"))
            page.choose("#f-order", "gap")
            page.type("#f-most_step", "0")
            page.wait("/^8 of/.test(document.querySelector('#count').innerText)")
            assert everything > 8 and page.see(
                "[...document.querySelectorAll('#rows .meta')].every(m => /step 0/.test(m.innerText))"
            )
            # ... opens a trajectory, its teacher's gap and its group ...
            page.click("#rows li:first-child a")
            page.wait("document.querySelectorAll('#token-text .tok').length > 3")
            labels = page.see("[...document.querySelectorAll('#token-colour button')].map(b => b.innerText)")
            assert labels == ["value", "advantage", "modulated advantage", "teacher gap", "log-prob"]
            assert page.see("document.querySelectorAll('.sibling').length") == 4
            assert page.see("document.querySelector('#told').innerText").count("Answer:") == 1
            # ... and is told of rollouts that were saved meanwhile.
            page.click("#steps-through a")
            page.wait("!document.querySelector('#fresh').hidden")
            page.click("#fresh")
            page.wait("document.querySelector('#fresh').hidden")
    finally:
        training.send_signal(signal.SIGTERM)
        finish(training)


@pytest.fixture
def comparison(tmp_path):
    make_comparison(
        tmp_path / "runs", arms={"pvf": {"ev": 0.5}, "mean": {"ev": None}}, seeds=(0, 1), steps=40, state="running"
    )
    return tmp_path / "runs"


def test_a_trajectory_is_coloured_pointed_at_stepped_through_and_linked_to(page, comparison):
    with served(comparison, page) as address:
        page.open(f"{address}/#view=list&run=pvf%2Fseed-1&least_reward=1")
        page.wait("document.querySelectorAll('#rows li').length > 3")
        assert page.see("document.querySelector('#f-least_reward').value") == "1"
        assert page.see("document.querySelector('#f-run').value") == "pvf/seed-1"
        page.click("#rows li:nth-child(2) a")
        page.wait("document.querySelectorAll('#token-text .tok').length === 17")
        # Two turns of the policy, the prompt and the environment between them.
        heads = page.see("[...document.querySelectorAll('#token-text .turn h4')].map(h => h.innerText)")
        assert heads == ["prompt", "turn 1 · policy", "environment", "turn 2 · policy"]
        page.wait("document.querySelector('#steps-through span')?.innerText.startsWith('2 of ')")
        link, words = page.see("location.href"), "document.querySelector('#token-facts').innerText"
        second = page.see(words)

        tints = "[...document.querySelectorAll('#token-text .tok')].map(t => getComputedStyle(t).backgroundColor)"
        by_value = page.see(tints)
        page.click("#token-colour button:nth-child(2)")
        assert len(set(by_value)) > 5 and page.see(tints) != by_value

        page.click("#token-text .tok:nth-child(3)")
        tip = page.see("document.querySelector('#token-tip').innerText")
        tip = tip.replace("\u2212", "-")
        assert re.search(r"value -?\d\.\d{4}\nadvantage -?\d\.\d{4}\nlog-prob -\d\.\d{4} nats", tip), tip

        page.press("ArrowRight")
        page.wait("document.querySelector('#steps-through span').innerText.startsWith('3 of ')")
        page.wait(f"{words} !== {json.dumps(second)}")
        third = page.see(words)
        page.press("ArrowLeft")
        page.wait(f"{words} === {json.dumps(second)}")
        # A member of its group, and back to the list with the filter as it was.
        page.click(".sibling:not(.own) a")
        page.wait(f"{words} !== {json.dumps(second)}")
        page.press("Escape")
        page.wait("!document.querySelector('#list').hidden && document.querySelectorAll('#rows li').length > 3")
        assert page.see("document.querySelector('#f-least_reward').value") == "1"

        # The link alone leads back to it, and to the place in its list.
        page.open("about:blank")
        page.open(link)
        page.wait(f"{words} === {json.dumps(second)}")
        page.wait("!document.querySelector('#steps-through button:last-of-type').disabled")
        page.press("ArrowRight")
        page.wait(f"{words} === {json.dumps(third)}")


def test_arrows_go_over_the_end_of_a_page_of_the_list(page, comparison):
    with served(comparison, page) as address:
        page.open(f"{address}/#view=list")
        page.wait("document.querySelectorAll('#rows li').length === 25")
        page.click("#rows li:nth-child(25) a")
        for key, place in (("ArrowRight", 26), ("ArrowRight", 27), ("ArrowLeft", 26), ("ArrowLeft", 25)):
            page.wait("document.querySelectorAll('#steps-through span').length === 1")
            page.press(key)
            page.wait(f"document.querySelector('#steps-through span')?.innerText === '{place} of 256'")


def test_curves_are_chosen_and_a_resume_takes_back_what_it_does_again(page, comparison):
    run = RunDirectory(comparison / "pvf" / "seed-0")
    with served(comparison, page) as address:
        page.open(f"{address}/#view=overview&curves=reward")
        page.wait("document.querySelectorAll('#curves figure svg').length === 1")
        page.choose("#add-metric", "policy_grad_norm")
        page.wait("document.querySelectorAll('#curves figure svg').length === 2")
        assert "curves=reward%2Cpolicy_grad_norm" in page.see("location.hash")
        page.click("#curves figure:first-child .close")
        page.wait("document.querySelectorAll('#curves figure').length === 1")
        page.open(f"{address}/#view=overview&curves=reward")
        points = (
            "document.querySelector('#curves path[stroke-width=\"1\"][opacity]')"
            "?.getAttribute('d').split(/[ML]/).length - 1"
        )
        page.wait(f"{points} === 40")
        run.append_metrics(40, {"reward": 0.5})
        page.wait(f"{points} === 41")
        run.resumes = 1
        run.append_metrics(10, {"reward": 0.5})
        page.wait(f"{points} === 11")
        assert "41" not in page.see("document.querySelector('#runs tbody tr').innerText")


def test_a_damaged_file_is_named_and_text_of_data_stays_text(page, tmp_path):
    make_run(tmp_path / "x" / HOSTILE.replace("/", ""), arm=HOSTILE, steps=20, save_every=20)
    rows = make_rollouts(np.random.default_rng(0), step=20, arm="a", ev=0.5, rollouts=8, texts=(HOSTILE, "\x00\u202e"))
    rows = [row | {"task_id": HOSTILE, "prompt": HOSTILE, "context": HOSTILE, "status": HOSTILE} for row in rows]
    write_parquet(next((tmp_path / "x").iterdir()) / "rollouts" / "step-00020.parquet", rows)
    torn = make_run(tmp_path / "torn", steps=20, save_every=20)
    (torn / "rollouts" / "step-00020.parquet").write_bytes(b"no")
    (torn / "metrics.jsonl").write_text('{"step": 0, "reward": 1}\n7\n')
    with served(tmp_path, page) as address:
        page.open(f"{address}/#view=overview")
        page.wait("document.querySelectorAll('#runs tbody tr').length === 2")
        page.wait("/metrics.jsonl, line 2/.test(document.querySelector('#problems').innerText)")
        page.click("#tab-list")
        page.wait("document.querySelectorAll('#rows li').length === 8")
        assert "step-00020.parquet" in page.see("document.querySelector('#problems').innerText")
        page.click("#rows li a")
        page.wait("document.querySelectorAll('#token-text .tok').length > 10")
        page.click("#token-text .turn:last-child .tok:nth-last-child(3)")
        text = page.see("document.body.innerText")
        assert text.count("window.hurt=1") > 10
        assert page.see("document.querySelectorAll('img').length + document.querySelectorAll('script').length") == 3
        assert page.see("window.hurt") is None


def test_a_run_without_rollouts_says_so_and_a_wrong_link_too(page, tmp_path):
    make_run(tmp_path / "run", steps=3, save_every=50)
    with served(tmp_path, page) as address:
        page.open(f"{address}/#view=list")
        page.wait("/No rollouts have been saved yet/.test(document.querySelector('#count').innerText)")
        page.open(f"{address}/#view=one&at_run=run&at_step=7&at_row=0")
        page.wait("/step 7 of 'run' has no saved rollouts/.test(document.querySelector('#one-problem').innerText)")
        assert page.see("document.querySelector('#one-panel').hidden")
    # What the browser itself logs of an answer that is not 200.
    page.said[:] = [m for m in page.said if "404" not in json.dumps(m.get("params", {}).get("entry", {}))]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("where", ["view=overview", "view=list", "view=one&at_run=pvf%2Fseed-0&at_step=20&at_row=1"])
def test_nothing_runs_over_the_edge_of_a_phone_or_a_desk(page, comparison, width, where):
    page.resize(width, 900)
    try:
        with served(comparison, page) as address:
            page.open(f"{address}/#{where}")
            shown = "#curves svg" if "overview" in where else "#rows li" if "list" in where else ".sibling .tok"
            page.wait(f"document.querySelectorAll('{shown}').length >= 2")
            assert page.see("document.documentElement.scrollWidth") <= width
    finally:
        page.resize(1280, 1000)


def test_it_prints_its_address_answers_and_stops_on_sigterm(tmp_path):
    shutil.copytree(make_run(tmp_path / "one", steps=3), tmp_path / "two")
    server = start("view", str(tmp_path), "--port", "0", cwd=tmp_path)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.search(r"at (http://127\.0\.0\.1:\d+) \(this machine only\)", said)
        assert address is not None, said
        with urllib.request.urlopen(f"{address[1]}/api/overview", timeout=30) as answer:
            assert [run["key"] for run in json.load(answer)["runs"]] == ["one", "two"]
    finally:
        server.send_signal(signal.SIGTERM)
        ended = finish(server)
    assert ended.code == 0 and ended.out.endswith("stopped.\n") and ended.err == "", ended


def test_what_cannot_be_viewed_is_one_sentence(tmp_path, capfd, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name, words in (("nowhere", "there is no directory"), ("empty", "holds no run (config.json)")):
        require_one_sentence(call(capfd, monkeypatch, "view", str(tmp_path / name)), words, name)
    run = make_run(tmp_path / "run", steps=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = call(capfd, monkeypatch, "view", str(run), "--port", port)
        require_one_sentence(answer, f"cannot listen on 127.0.0.1 port {port}", "in use")
    require_one_sentence(call(capfd, monkeypatch, "view", str(run), "--host", "no.such.invalid"), "no.such.invalid")
    require_one_sentence(call(capfd, monkeypatch, "view", str(run), "--port", "70000"), "--port")
