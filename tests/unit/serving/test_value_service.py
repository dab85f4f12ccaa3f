"""The value service gives the in-process evaluator's numbers, keeps to its limits, and changes weights under load."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from running_server import JSON, PATIENCE, ask, critic, post, running, saved
from safetensors.torch import load_file, save_file
from small_models import VOCABULARY

from benchmarks.value_service import load
from lecritique.config.losses import Categorical, Mse
from lecritique.core.errors import RoleFailure
from lecritique.models.scoring import TokenRow, values
from lecritique.numerics.alignment import insert_context, spread_over_context
from lecritique.serving.app import Limits
from lecritique.serving.checkpoint import ServedCheckpoint
from lecritique.serving.client import ValueClient, ValueServiceError
from lecritique.serving.wire import msgpack

TOKEN = "a-token-of-many-letters"
MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("run") / "weights" / "critic", 1).parent.parent


@pytest.fixture(scope="module")
def up(folder):
    with running(folder) as one:
        yield one


def sequences(count: int = 6, seed: int = 0) -> list[dict]:
    """Siblings and rows alone, every way to say what is wanted, with and without context."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, VOCABULARY, 40).tolist()
    asked = []
    for index in range(count):
        ids = [*prompt, *rng.integers(0, VOCABULARY, 3 + 2 * index).tolist()]
        each: dict = {"token_ids": ids if index % 3 else ids[5:]}
        if index % 3 == 1:
            each["from"] = len(prompt)
        if index % 3 == 2:
            each["mask"] = [False, *(bool(b) for b in rng.integers(0, 2, len(ids) - 1))]
            each["context"] = {"position": 1, "token_ids": [4, 4, 8, index]}
        asked.append(each)
    return asked


def rows_of(asked: list[dict]) -> list[TokenRow]:
    rows = []
    for each in asked:
        ids = np.array(each["token_ids"])
        mask = np.array(each["mask"]) if "mask" in each else np.arange(len(ids)) >= each.get("from", 1)
        if "context" in each:
            at, context = each["context"]["position"], each["context"]["token_ids"]
            ids, mask = insert_context(ids, at, context), spread_over_context(mask, at, len(context))
        rows.append(TokenRow(token_ids=ids, mask=mask))
    return rows


def in_process(asked: list[dict], seed: int = 1) -> list[list[float]]:
    return [each.tolist() for each in values(critic(seed), rows_of(asked), max_tokens=4096)]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_numbers_are_the_in_process_evaluators_to_the_last_bit(up, form) -> None:
    asked = sequences()
    with ValueClient(up.server.address, form=form) as client:
        found, version = client.values(asked)
        assert version == 0
        assert found == in_process(asked)
        assert client.values([]) == ([], 0)
        # A bare list: every token but the first.
        ids = asked[0]["token_ids"]
        assert client.values([ids])[0] == in_process([{"token_ids": ids}])
        assert client.values([{"token_ids": [3], "mask": [False]}])[0] == [[]]
        with pytest.raises(ValueServiceError, match="outside the vocabulary of 24 ids") as refused:
            client.values([[1, 24]])
        assert refused.value.status == 400
        # The connection goes on after a refusal.
        assert client.values(asked)[0] == found


def test_each_form_is_read_and_written_as_the_headers_say(up) -> None:
    body = {"sequences": [[1, 2, 3]]}
    packed, plain = msgpack().packb(body), json.dumps(body).encode()
    (expected,) = in_process([{"token_ids": [1, 2, 3]}])
    for sent, headers, answered in [
        (plain, JSON, "application/json"),
        (packed, MSGPACK, "application/msgpack"),
        (packed, {"Content-Type": "application/x-msgpack; x=y"}, "application/msgpack"),
        (packed, {**MSGPACK, "Accept": "application/json"}, "application/json"),
        (plain, {**JSON, "Accept": "text/html, application/msgpack;q=1"}, "application/msgpack"),
        (plain, {"Content-Type": "Application/JSON; charset=utf-8", "Accept": "*/*"}, "application/json"),
    ]:
        answer = post(up.server, sent, headers)
        assert (answer.status, answer.headers["content-type"]) == (200, answered)
        decoded = answer.json if answered.endswith("json") else msgpack().unpackb(answer.body)
        assert decoded == {"version": 0, "values": [expected]}


NESTED = b"[" * 100_000 + b"]" * 100_000
BAD = [
    (b"", "not json"),
    (b"{", "not json"),
    (b'{"sequences": [[1, NaN]]}', "NaN is not a JSON number"),
    (b'{"sequences": [[1, -Infinity]]}', "-Infinity is not a JSON number"),
    (b"\xff\xfe\x00", "not json"),
    (NESTED, "nests too deeply|not json"),
    (b'{"sequences": ' + NESTED + b"}", "nests too deeply|not json"),
    (b'{"sequences": [[1, ' + b"9" * 6000 + b"]]}", "not json"),
    (b"null", "the body: "),
    (b"[]", "the body: "),
    (b"{}", "sequences: field required"),
    (b'{"sequences": null}', "sequences: "),
    (b'{"sequences": 7}', "sequences: "),
    (b'{"sequences": [], "more": 1}', "more: extra inputs"),
    (b'{"sequences": [7]}', r"sequences\.0: .*got 7"),
    (b'{"sequences": [[]]}', r"sequences\.0\.token_ids: .*at least 1"),
    (b'{"sequences": [[1, 2], [3, "4"]]}', r"sequences\.1\.token_ids\.1: .*got '4'"),
    (b'{"sequences": [[1, 2.0]]}', r"sequences\.0\.token_ids\.1: .*got 2\.0"),
    (b'{"sequences": [[1, true]]}', r"sequences\.0\.token_ids\.1: .*got True"),
    (b'{"sequences": [[1, null]]}', r"sequences\.0\.token_ids\.1: .*got None"),
    (b'{"sequences": [[1, [2]]]}', r"sequences\.0\.token_ids\.1: .*got a list"),
    (b'{"sequences": [[1, -2]]}', r"sequences\.0\.token_ids\.1: .*greater than or equal to 0, got -2"),
    (b'{"sequences": [[1, 24]]}', r"sequences\.0\.token_ids\.1: id 24 is outside the vocabulary of 24 ids"),
    (b'{"sequences": [[1, 99999999999999999999999999]]}', "got a larger number"),
    (b'{"sequences": [[1, 1e400]]}', "got inf"),
    (b'{"sequences": [{"token_ids": [1, 2], "from": 0}]}', r"sequences\.0\.from: "),
    (b'{"sequences": [{"token_ids": [1, 2], "from": 1.5}]}', r"sequences\.0\.from: "),
    (b'{"sequences": [{"token_ids": [1, 2], "mask": [true, true]}]}', "the first token has no state before it"),
    (b'{"sequences": [{"token_ids": [1, 2], "mask": [false]}]}', "1 entries for 2 tokens"),
    (b'{"sequences": [{"token_ids": [1, 2], "mask": [0, 1]}]}', r"sequences\.0\.mask\.0: "),
    (b'{"sequences": [{"token_ids": [1, 2], "mask": [false, true], "from": 1}]}', "expected one"),
    (b'{"sequences": [{"token_ids": [1, 2], "context": {"position": 3, "token_ids": [1]}}]}', "behind the end"),
    (b'{"sequences": [{"token_ids": [1, 2], "context": {"position": -1, "token_ids": [1]}}]}', "context.position"),
    (b'{"sequences": [{"token_ids": [1, 2], "context": {"position": 1, "token_ids": [77]}}]}', "token_ids.0: id"),
    (b'{"sequences": [{"token_ids": [1, 2], "context": [1]}]}', r"sequences\.0\.context: "),
    (b'{"sequences": [{"token_ids": [1, 2], "\\ud800": 1}]}', "unicode string"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "sentence"), BAD, ids=lambda value: str(value[:40]))
def test_bad_json_is_one_clear_sentence_and_no_trace(up, body, sentence) -> None:
    answer = post(up.server, body, JSON)
    assert answer.status == 400
    assert set(answer.json) == {"error"}
    assert re.search(sentence, answer.json["error"]), answer.json
    assert len(answer.json["error"]) < 400 and "\n" not in answer.json["error"]
    assert b"Traceback" not in answer.body and b".py" not in answer.body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgpack().packb({"sequences": [[1, 2]]})[:-1],
        msgpack().packb({"sequences": [[1, 2]]}) + b"\x00",
        msgpack().packb({"sequences": [[1, float("nan")]]}),
        msgpack().packb({"sequences": [[1, 2**63]]}),
        msgpack().packb({"sequences": [[1, -(2**63)]]}),
        msgpack().packb({"sequences": [b"\x01\x02"]}),
        msgpack().packb({"sequences": [msgpack().ExtType(5, b"x")]}),
        msgpack().packb({1: 2}),
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xa2\xff\xff",
    ],
)
def test_bad_msgpack_too(up, body) -> None:
    answer = post(up.server, body, {**MSGPACK, "Accept": "application/json"})
    assert answer.status == 400 and set(answer.json) == {"error"} and b"Traceback" not in answer.body
    packed = post(up.server, body, MSGPACK)
    assert packed.status == 400 and set(msgpack().unpackb(packed.body)) == {"error"}
    assert post(up.server, {"sequences": [[1, 2]]}).status == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/v1/values", {}, 405),
        ("POST", "/health", JSON, 405),
        ("POST", "/v1/values", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/values", {}, 415),
        ("POST", "/v1/reload", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("GET", "/health", {"Host": "evil.example"}, 421),
        ("GET", "/version", {"Host": "evil.example:8123"}, 421),
        ("GET", "/version", {"Host": "LOCALHOST:1"}, 200),
        ("GET", "/version", {"Host": "[::1]:1"}, 200),
    ],
)
def test_other_pages_methods_types_and_names(up, method, path, headers, status) -> None:
    answer = ask(up.server, method, path, b"{}" if method == "POST" else None, headers)
    assert answer.status == status
    assert status == 200 or set(answer.json) == {"error"}


def test_version_and_health_say_what_serves(up, folder) -> None:
    assert ask(up.server, "GET", "/health").json == {"status": "ok"}
    said = ask(up.server, "GET", "/version").json
    assert said["version"] == 0 and said["checkpoint"] == str(folder)
    assert (said["vocabulary"], said["context_length"], said["support"]) == (VOCABULARY, 128, [0.0, 1.0])
    assert re.fullmatch("[0-9a-f]{32}", said["digest"])


def test_limits_of_a_request(folder) -> None:
    limits = Limits(body_bytes=2000, request_tokens=100, sequences=4, body_seconds=0.3)
    with running(folder, limits=limits) as one:
        assert post(one.server, {"sequences": [[1] * 25] * 4}).status == 200
        for body, status, sentence in [
            ({"sequences": [[1] * 26] * 4}, 413, "104 tokens are over the limit of 100 a request"),
            ({"sequences": [[1]] * 5}, 413, "5 sequences are over the limit of 4"),
            ({"sequences": [[1] * 129]}, 422, r"sequences\.0: 129 tokens .* over the critic's limit of 128"),
            (
                {"sequences": [[1], {"token_ids": [1] * 100, "context": {"position": 0, "token_ids": [2] * 29}}]},
                422,
                r"sequences\.1: 129 tokens with its context",
            ),
            (b" " * 2001, 413, "over the limit of 2000 bytes"),
        ]:  # fmt: skip
            answer = post(one.server, body, JSON)
            assert answer.status == status and re.search(sentence, answer.json["error"]), answer
        # Sent in chunks, without an announced length; an announced one is believed only when it is too large.
        chunked = post_chunks(one.server.port, [b" " * 500] * 5)
        assert b" 413 " in chunked.split(b"\r\n")[0]
        # A body that does not come.
        slow = post_chunks(one.server.port, [b" "], finish=False)
        assert b" 408 " in slow.split(b"\r\n")[0] and b"within 0.3 seconds" in slow
        assert post(one.server, {"sequences": [[1, 2]]}).status == 200


def post_chunks(port: int, chunks: list[bytes], *, finish: bool = True) -> bytes:
    """A chunked body, by hand; everything that comes back until the server closes."""

    async def exchange() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if finish:
            writer.write(b"0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        return answer

    return asyncio.run(exchange())


def until(true) -> None:
    """Wait for another thread."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


class Held:
    """A served model whose leases wait until they are let go."""

    def __init__(self, inner) -> None:
        self.inner, self.let_go, self.holding = inner, threading.Event(), threading.Event()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def leased(self):
        self.holding.set()
        assert self.let_go.wait(PATIENCE)
        return self.inner.leased()


def test_beyond_the_queue_it_says_503_and_loses_nothing_that_it_took(folder) -> None:
    checkpoint = ServedCheckpoint(folder)
    held = Held(checkpoint.served)
    body = {"sequences": [[1] * 50]}
    with running(folder, checkpoint=checkpoint, served=held, queue=120, batch=1) as one, ThreadPoolExecutor(8) as pool:
        taken = [pool.submit(post, one.server, body)]
        assert held.holding.wait(PATIENCE)
        taken += [pool.submit(post, one.server, body) for _ in range(2)]
        until(lambda: one.service.queued_tokens == 100)
        for _ in range(3):
            answer = post(one.server, body)
            assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1
            assert "queue holds 100 tokens; 50 more are over its limit of 120" in answer.json["error"]
        assert ask(one.server, "GET", "/health").status == 200
        held.let_go.set()
        for future in taken:
            assert future.result(PATIENCE).status == 200
        assert post(one.server, body).status == 200
        page = ask(one.server, "GET", "/metrics").body.decode()
        assert (
            'lecritique_http_responses_total{status="503"} 3' in page and "lecritique_value_overloaded_total 3" in page
        )


def test_no_more_requests_at_once_than_it_takes(folder) -> None:
    checkpoint = ServedCheckpoint(folder)
    held = Held(checkpoint.served)
    body = {"sequences": [[1, 2]]}
    limits = Limits(requests_at_once=2)
    with (
        running(folder, checkpoint=checkpoint, served=held, limits=limits, batch=1) as one,
        ThreadPoolExecutor(4) as pool,
    ):
        taken = [pool.submit(post, one.server, body) for _ in range(2)]
        until(lambda: one.service.queued_tokens == 2 and held.holding.is_set())
        answer = post(one.server, body)
        assert answer.status == 503 and "retry-after" in answer.headers
        held.let_go.set()
        assert [future.result(PATIENCE).status for future in taken] == [200, 200]
        assert post(one.server, body).status == 200


def test_with_a_token_every_page_but_health_needs_it(folder) -> None:
    pages = [("GET", "/version"), ("GET", "/metrics"), ("POST", "/v1/values"), ("POST", "/v1/reload")]
    wrong = ["", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe9", TOKEN]
    with running(folder, token=TOKEN) as one:
        assert ask(one.server, "GET", "/health").status == 200
        for method, path in pages:
            for given in [None, *wrong]:
                headers = JSON if given is None else {**JSON, "Authorization": given}
                # A body over the limit and of junk: refused for the token, not read.
                answer = ask(one.server, method, path, b"junk" if method == "POST" else None, headers)
                assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in answer.body.decode()
        with ValueClient(one.server.address, token=TOKEN) as client:
            assert client.version()["version"] == 0
            assert client.values([[1, 2]])[1] == 0
            assert client.reload() == 1
        # Any name may be used for a server that asks for a token.
        headers = {"Authorization": f"bearer  {TOKEN} ", "Host": "critic.example"}
        assert ask(one.server, "GET", "/metrics", None, headers).status == 200
        with pytest.raises(ValueServiceError, match="needs its token") as refused:
            ValueClient(one.server.address, token="x" * 30).values([[1, 2]])
        assert refused.value.status == 401


def test_weights_are_replaced_under_load_without_a_pause(folder, tmp_path) -> None:
    other = saved(tmp_path / "other", 2)
    asked = sequences()
    expected = [in_process(asked, 1), in_process(asked, 2)]
    ended = threading.Event()
    with running(folder, batch=1) as one, ThreadPoolExecutor(4) as pool:

        def keep_asking(form) -> list[int]:
            versions = []
            with ValueClient(one.server.address, form=form) as client:
                while not ended.is_set():
                    found, version = client.values(asked)
                    assert found == expected[version % 2]
                    versions.append(version)
            assert versions == sorted(versions)
            return versions

        clients = [pool.submit(keep_asking, form) for form in ("json", "msgpack", "json", "msgpack")]
        with ValueClient(one.server.address) as operator:
            try:
                for version in range(1, 21):
                    assert operator.reload(str(other if version % 2 else folder)) == version
                    # Whoever is told of a version is served by it.
                    found, served = operator.values(asked)
                    assert served == version and found == expected[version % 2]
            finally:
                ended.set()
            seen = [client.result(PATIENCE) for client in clients]
            assert operator.reload() == 21  # the newest one again
            assert operator.values(asked) == (expected[0], 21)
        assert all(len(set(versions)) > 3 for versions in seen)
        page = ask(one.server, "GET", "/metrics").body.decode()
        assert 'lecritique_reloads_total{outcome="adopted"} 21' in page and "lecritique_value_version 21" in page


OTHERS = {
    "shapes": {"layers": 1},
    "loss": {"loss": Categorical(atoms=5)},
    "range": {"loss": Categorical(atoms=2, high=2.0)},
}


def spoil(folder, kind: str):
    """A checkpoint that cannot be served, of one kind."""
    saved(folder, 3, **OTHERS.get(kind, {}))
    weights = folder / "value_model.safetensors"
    if kind == "nan":
        state = load_file(weights)
        state["head.bias"][0] = float("nan")
        save_file(state, weights)
    elif kind == "no head":
        save_file({name: tensor for name, tensor in load_file(weights).items() if "head" not in name}, weights)
    elif kind == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif kind == "junk":
        weights.write_bytes(b"junk")
    elif kind == "folder":
        weights.unlink()
        weights.mkdir()
    elif kind in ("junk loss", "no loss", "deep loss"):
        text = {"junk loss": "{", "no loss": "null", "deep loss": "[" * 100_000}[kind]
        (folder / "value_loss.json").write_text(text)
    return folder


KINDS = ["shapes", "loss", "range", "nan", "no head", "cut", "junk", "folder", "junk loss", "no loss", "deep loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_checkpoint_leaves_the_old_weights_serving_and_says_so(up, tmp_path, kind) -> None:
    before = post(up.server, {"sequences": sequences()}).json
    answer = ask(up.server, "POST", "/v1/reload", {"path": str(spoil(tmp_path / "bad", kind))})
    assert answer.status == 422
    assert answer.json["error"].endswith("; version 0 goes on serving."), answer.json
    assert post(up.server, {"sequences": sequences()}).json == before
    assert ask(up.server, "GET", "/version").json["version"] == 0


@pytest.mark.parametrize("path", ["/nowhere", "a\0b", "x" * 4000, "", 7, None, "/etc/passwd", "\ud800"])
def test_bad_reload_paths(up, path, folder) -> None:
    answer = ask(up.server, "POST", "/v1/reload", {"path": path, **({"x": 1} if path is None else {})})
    assert answer.status in (400, 422) and set(answer.json) == {"error"} and b"Traceback" not in answer.body
    assert ask(up.server, "GET", "/version").json["version"] == 0


@pytest.mark.parametrize("kind", ["nan", "no head", "cut", "junk", "junk loss", "config"])
def test_a_bad_checkpoint_is_refused_at_the_start_too(tmp_path, kind) -> None:
    from lecritique.core.errors import CheckpointError

    folder = spoil(tmp_path / "bad", kind)
    if kind == "config":
        (folder / "config.json").write_text('{"model_type": "no such thing"}')
    with pytest.raises(CheckpointError, match="bad"):
        ServedCheckpoint(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_saved_critic_is_served_in_its_own_precision(tmp_path, dtype) -> None:
    saved(tmp_path, 4, dtype=dtype, loss=Mse())
    checkpoint = ServedCheckpoint(tmp_path)
    rows = rows_of(sequences())
    with checkpoint.served.leased() as leased:
        found = values(leased.model, rows, max_tokens=4096)
    expected = values(critic(4, dtype=dtype, loss=Mse()), rows, max_tokens=4096)
    assert all(one.tolist() == other.tolist() for one, other in zip(found, expected, strict=True))


def test_what_is_in_flight_is_answered_when_it_stops(folder) -> None:
    checkpoint = ServedCheckpoint(folder)
    held = Held(checkpoint.served)
    with running(folder, checkpoint=checkpoint, served=held, batch=1) as one, ThreadPoolExecutor(4) as pool:
        taken = [pool.submit(post, one.server, {"sequences": sequences()}) for _ in range(3)]
        tokens = sum(row.read_tokens for row in rows_of(sequences()))
        until(lambda: one.service.queued_tokens == 2 * tokens and held.holding.is_set())
        one.server.stop()
        time.sleep(0.3)
        assert one.ended.is_alive() and not any(future.done() for future in taken)
        held.let_go.set()
        assert [future.result(PATIENCE).status for future in taken] == [200] * 3
        one.ended.join(PATIENCE)
        assert not one.ended.is_alive() and one.errors == [] and one.server.answered == 3
        with pytest.raises(OSError, match="refused"):
            post(one.server, {"sequences": []})


def test_when_the_evaluator_fails_it_says_so_and_ends(folder) -> None:
    checkpoint = ServedCheckpoint(folder)

    class Broken(Held):
        def leased(self):
            raise MemoryError("no room")

    with running(folder, checkpoint=checkpoint, served=Broken(checkpoint.served)) as one:
        answer = post(one.server, {"sequences": [[1, 2]]})
        assert answer.status == 500 and "value evaluator failed: MemoryError: no room" in answer.json["error"]
        one.ended.join(PATIENCE)
        assert not one.ended.is_alive() and isinstance(one.errors[0], RoleFailure)


def test_metrics_are_prometheus_text_and_count_right(folder) -> None:
    with running(folder) as one:
        for _ in range(3):
            assert post(one.server, {"sequences": [[1, 2, 3], [4, 5]]}).status == 200
        assert post(one.server, b"junk", JSON).status == 400
        answer = ask(one.server, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    page = answer.body.decode()
    samples, types = {}, {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types and kind in ("counter", "gauge", "histogram")
            types[name] = kind
        elif not line.startswith("# HELP "):
            name, value = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]+"\})?) (\S+)', line).groups()
            assert name not in samples
            samples[name] = float(value)
    for name in samples:
        assert re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) in types or name.split("{")[0] in types
    assert samples["lecritique_value_sequences_total"] == 6
    assert samples["lecritique_value_tokens_total"] == 15
    assert samples['lecritique_http_responses_total{status="200"}'] == 3
    assert samples['lecritique_http_responses_total{status="400"}'] == 1
    assert (
        samples["lecritique_value_request_seconds_count"]
        == 3
        == samples['lecritique_value_request_seconds_bucket{le="+Inf"}']
    )
    assert samples["lecritique_value_request_seconds_sum"] > 0
    buckets = [samples[name] for name in samples if "_bucket" in name]
    assert buckets == sorted(buckets)


def test_fifty_clients_for_three_seconds_lose_nothing(tmp_path) -> None:
    """The short form of benchmarks/value_service.py; its ids need the tiny model's vocabulary."""
    from lecritique.config.losses import Bce
    from lecritique.models.loading import load_causal_lm
    from lecritique.models.value_model import ValueModel, save_value_model

    save_value_model(ValueModel.from_policy(load_causal_lm("tiny").model, Bce(), seed=0), tmp_path)
    with running(tmp_path, batch=16_384, wait_seconds=0.002, queue=1_000_000) as one:
        tally = asyncio.run(load("127.0.0.1", one.server.port, clients=50, seconds=3))
    assert tally.counts["asked"] == tally.counts["answered"] >= 50, tally.lines(3)
    assert one.service.counts.batches < tally.counts["answered"]
