"""The second stage: asked about rejected answers only, over HTTP or in this process; no verdict is no reward."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from lecritique.core.errors import ConfigurationError, VerifierFailure
from lecritique.models.loading import load_causal_lm
from lecritique.tasks.math import judge as judge_module
from lecritique.tasks.math.judge import LocalVerdict, prompt, verdict
from lecritique.tasks.math.options import LocalJudge
from lecritique.tasks.math.pool import ComparisonPool
from lecritique.tasks.registry import load_environment


class Endpoint:
    """A local server that answers as told and keeps what it was sent."""

    def __init__(self) -> None:
        self.replies = ["A"]
        self.requests = []
        self.statuses = []
        self.raw = None
        self.pause_seconds = 0.0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((self.path, dict(self.headers), body))
                time.sleep(endpoint.pause_seconds)
                status = endpoint.statuses.pop(0) if endpoint.statuses else 200
                reply = endpoint.replies.pop(0) if len(endpoint.replies) > 1 else endpoint.replies[0]
                sent = endpoint.raw or json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)
                except BrokenPipeError:
                    pass

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(judge_module, "_PAUSE_SECONDS", 0.0)
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="module")
def pool():
    pool = ComparisonPool(workers=1, limit_seconds=5.0)
    yield pool
    pool.close()


@pytest.fixture
def asked(endpoint, tmp_path, pool):
    """Score a response to a problem whose answer is 3, with the endpoint as the judge."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "How many {gold}?", "final_answer": "3"}))

    def score(text, **options):
        judge = {"type": "endpoint", "url": endpoint.url, "model": "judge-3b", **options}
        environment = load_environment("math", {"file": str(tmp_path / "a.jsonl"), "judge": judge})
        environment._pool = pool
        return environment.score(environment.task(0), text)

    return score


def test_a_rejected_answer_is_judged(endpoint, asked):
    assert asked(r"so \boxed{three}") == 1.0
    ((path, headers, body),) = endpoint.requests
    assert path == "/v1/chat/completions" and "Authorization" not in headers
    assert (body["model"], body["temperature"]) == ("judge-3b", 0.0)
    content = body["messages"][0]["content"]
    assert "How many {gold}?" in content and "\n3\n" in content and "\nthree\n" in content
    endpoint.replies = ["B"]
    assert asked(r"so \boxed{four}") == 0.0
    endpoint.replies = ["C"]
    assert asked(r"so \boxed{four}") == 0.0


def test_accepted_and_empty_answers_are_not_judged(endpoint, asked):
    assert asked(r"\boxed{3}") == asked(r"\boxed{6/2}") == 1.0
    assert asked("") == asked(r"\boxed{}") == asked("three") == 0.0
    assert endpoint.requests == []


def test_a_judge_without_a_verdict_gives_no_reward(endpoint, asked):
    endpoint.replies = ["I am not sure."]
    with pytest.raises(VerifierFailure, match=r"replied 'I am not sure\.'"):
        asked(r"\boxed{three}")
    for raw in (b"{}", b"[]", b'{"choices": []}', b"null"):
        endpoint.raw = raw
        with pytest.raises(VerifierFailure, match="expected choices"):
            asked(r"\boxed{three}")
    endpoint.raw = b"<html>"
    with pytest.raises(VerifierFailure, match="could not be asked"):
        asked(r"\boxed{three}")


def test_a_failing_endpoint_is_asked_again(endpoint, asked):
    endpoint.statuses = [500, 429]
    assert asked(r"\boxed{three}") == 1.0 and len(endpoint.requests) == 3
    endpoint.statuses = [503] * 5
    with pytest.raises(VerifierFailure, match="HTTP 503"):
        asked(r"\boxed{three}", attempts=2)
    assert len(endpoint.requests) == 5
    endpoint.statuses = [404]
    with pytest.raises(VerifierFailure, match="HTTP 404"):
        asked(r"\boxed{three}")
    assert len(endpoint.requests) == 6


def test_a_silent_endpoint_is_left_at_the_limit(endpoint, asked):
    endpoint.pause_seconds = 1.5
    begun = time.monotonic()
    with pytest.raises(VerifierFailure, match="could not be asked"):
        asked(r"\boxed{three}", limit_seconds=0.2, attempts=1)
    assert time.monotonic() - begun < 30.0 and len(endpoint.requests) == 1


def test_an_endpoint_that_is_not_there(asked):
    with pytest.raises(VerifierFailure, match="could not be asked"):
        asked(r"\boxed{three}", url="http://127.0.0.1:9/v1")


def test_the_api_key_comes_from_the_environment(endpoint, asked, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k-1")
    assert asked(r"\boxed{three}", api_key_variable="JUDGE_KEY") == 1.0
    assert endpoint.requests[0][1]["Authorization"] == "Bearer k-1"
    with pytest.raises(ConfigurationError, match="no such variable"):
        asked(r"\boxed{three}", api_key_variable="NO_SUCH_KEY")


@pytest.mark.parametrize(
    ("reply", "accepted"),
    [
        ("A", True), (" a.\n", True), ("**A**", True), ("B", False), ("C", False), ("CORRECT", True),
        ("INCORRECT", False), (r"They agree. \boxed{A}", True), (r"\boxed{B}", False),
        ("Analysis: the same.\nFinal Judgment: A", True), ("Judgment: B - INCORRECT", None), ("A correct answer", None),
        ("<think>A or B?</think>\nB", False), ("", None), ("yes", None), ("A B", None),
    ],
)  # fmt: skip
def test_verdicts(reply, accepted):
    if accepted is None:
        with pytest.raises(VerifierFailure, match="expected A, B or C"):
            verdict(reply)
    else:
        assert verdict(reply) is accepted


def test_what_is_filled_in_is_not_filled_again():
    text = prompt(question="{answer}", gold="{question}", answer="x" * 9000 + "{gold}")
    assert "{answer}" in text and "{question}" in text and "{gold}" in text and text.count("x") < 4100


def test_a_local_model_is_asked_in_its_chat_template(monkeypatch):
    judge = LocalVerdict(LocalJudge(type="local", model="tiny", max_tokens=4))
    language = load_causal_lm("tiny")
    seen = []
    generate = language.model.generate

    def generating(ids, **options):
        seen.append((language.tokenizer.decode(ids[0]), options))
        output = generate(ids, **options)
        return torch.cat([output[:, : ids.shape[1]], torch.tensor([language.tokenizer.encode("12")])], dim=1)

    monkeypatch.setattr(language.model, "generate", generating)
    monkeypatch.setattr("lecritique.models.loading.load_causal_lm", lambda name, device: language)
    assert judge.reply("1+2=") == "12"
    ((text, options),) = seen
    assert "1+2=" in text and options["do_sample"] is False and options["max_new_tokens"] == 4
    with pytest.raises(VerifierFailure, match="context of"):
        judge.reply("1" * 100_000)
    monkeypatch.setattr(judge, "reply", lambda text: "A" if "\n3\n" in text else "B")
    assert judge.accepts(question="q", gold="3", answer="x") and not judge.accepts(question="q", gold="4", answer="x")
