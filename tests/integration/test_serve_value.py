"""`lecritique serve-value` as a user starts and stops it."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from lecritique.config.losses import Bce
from lecritique.models.loading import load_causal_lm
from lecritique.models.scoring import TokenRow, values
from lecritique.models.value_model import ValueModel, save_value_model
from lecritique.serving.client import ValueClient, ValueServiceError
from lecritique.serving.server import TOKEN_VARIABLE
from tests.integration.command_line import call, finish, require_one_sentence, start

TOKEN = "a-token-of-many-letters"


@pytest.fixture(scope="module")
def critic():
    return ValueModel.from_policy(load_causal_lm("tiny").model, Bce(), seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory, critic):
    folder = tmp_path_factory.mktemp("run")
    save_value_model(critic, folder / "weights" / "critic")
    return folder


def address_of(server: subprocess.Popen[str]) -> str:
    """What it prints once it listens."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"as version 0 at (http://\S+)", line):
            return found[1]
    raise AssertionError(server.stderr.read() if server.stderr else "")


def test_it_prints_its_address_serves_a_run_and_stops_on_sigterm(run, critic, tmp_path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    server = start("serve-value", str(run), "--port", "0", "--token-file", str(tmp_path / "token"), cwd=tmp_path)
    try:
        address = address_of(server)
        ids = [[5, 6, 7, 8], [9, 10, 11]]
        rows = [TokenRow(token_ids=row, mask=mask) for row, mask in map(_every_token, ids)]
        with ValueClient(address, token=TOKEN, form="msgpack") as client:
            found, version = client.values(ids)
            assert version == 0
            assert found == [each.tolist() for each in values(critic, rows, max_tokens=16_384)]
            assert client.reload() == 1
        with pytest.raises(ValueServiceError, match="needs its token"):
            ValueClient(address).version()
    finally:
        server.send_signal(signal.SIGTERM)
        answer = finish(server)
    assert answer.code == 0, answer
    assert "stopped after 1 answers" in answer.out and answer.err == "" and TOKEN not in answer.out


def _every_token(ids: list[int]):
    import numpy as np

    return np.array(ids), np.arange(len(ids)) >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], ["--host 0.0.0.0", "--token-file", TOKEN_VARIABLE]),
        (["--host", "::"], ["token is needed"]),
        (["--token-file", "nowhere"], ["--token-file", "nowhere"]),
        (["--token-file", "short"], ["the token has 5 characters", "at least 16"]),
        (["--host", "no.such.name.invalid", "--token-file", "good"], ["cannot listen on no.such.name.invalid"]),
        (["--host", "203.0.113.7", "--token-file", "good"], ["cannot listen on 203.0.113.7"]),
        (["--port", "70000"], ["--port"]),
        (["--queue-tokens", "0"], ["--queue-tokens"]),
        (["--device", "toaster"], ["toaster"]),
    ],
)
def test_what_it_refuses_to_start_with(capfd, monkeypatch, run, tmp_path, arguments, words) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    (tmp_path / "good").write_text(TOKEN)
    require_one_sentence(call(capfd, monkeypatch, "serve-value", str(run), *arguments), *words)


def test_a_token_in_the_environment_counts_and_an_empty_one_is_refused(capfd, monkeypatch, run) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, " ")
    answer = call(capfd, monkeypatch, "serve-value", str(run))
    require_one_sentence(answer, "the token has 0 characters")


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_holds_no_critic(capfd, monkeypatch, tmp_path, name) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    answer = call(capfd, monkeypatch, "serve-value", str(tmp_path / name))
    require_one_sentence(answer, name, "holds no saved critic", "value_model.safetensors")


def test_a_taken_port_is_one_sentence(capfd, monkeypatch, run) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = call(capfd, monkeypatch, "serve-value", str(run), "--port", str(taken.getsockname()[1]))
    require_one_sentence(answer, "cannot listen on 127.0.0.1 port", "in use")


def test_without_its_packages_it_names_the_extra(capfd, monkeypatch, run) -> None:
    import importlib.util

    found = importlib.util.find_spec

    def without_uvicorn(name, *rest):
        return None if name == "uvicorn" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without_uvicorn)
    answer = call(capfd, monkeypatch, "serve-value", str(run))
    require_one_sentence(answer, "serve-value needs uvicorn", "lecritique[serve]")


def test_its_help_teaches(capfd, monkeypatch) -> None:
    answer = call(capfd, monkeypatch, "serve-value", "--help")
    assert answer.code == 0
    for word in ("curl", "/v1/values", "/v1/reload", "context", "503", "--token-file", "msgpack"):
        assert word in answer.out
