"""The value service under load: many clients at once, every request accounted for.

    python benchmarks/value_service.py                      200 clients for a minute within the limits
    python benchmarks/value_service.py --beyond             the same with a queue so short that it must say 503

The server is a process of its own, `lecritique serve-value` on the bundled tiny model; the clients are coroutines of
this one, each with one kept connection and one request at a time: groups of four siblings with a prompt of 24 to 96
tokens and responses of up to 64. A client that is told 503 waits as long as Retry-After says and asks again, and counts
that request as answered only when its values came. Lost means no answer, error an answer that is neither values nor
503, wrong values that do not have the shape of what was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MEMBERS = 4
VOCABULARY = 262


@dataclass
class Tally:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, fault: str = "") -> None:
        """Count one thing, and remember the first faults in words."""
        self.counts[kind] += 1
        if fault and len(self.faults) < 5:
            self.faults.append(f"{kind}: {fault}")

    def lines(self, elapsed: float) -> list[str]:
        """As it is printed."""
        counts = self.counts
        lines = [
            f"{counts['asked']} requests of {MEMBERS} sequences in {elapsed:.1f} s: {counts['answered']} answered, "
            f"{counts['lost']} lost, {counts['error']} errors, {counts['wrong']} wrong; "
            f"{counts['told to wait']} times told 503, {counts['without Retry-After']} of them without Retry-After",
            f"{counts['answered'] / elapsed:.0f} requests/s, {counts['tokens'] / elapsed:,.0f} tokens/s",
        ]
        if self.seconds:
            p50, p99, most = np.quantile(self.seconds, [0.5, 0.99, 1.0])
            lines.append(f"latency p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, longest {1e3 * most:.0f} ms")
        return [*lines, *self.faults]


async def load(host: str, port: int, *, clients: int, seconds: float) -> Tally:
    """All clients for so long; each finishes the request that it has begun."""
    tally, end = Tally(), time.monotonic() + seconds
    await asyncio.gather(*(_client(host, port, number, end, tally) for number in range(clients)))
    return tally


async def _client(host: str, port: int, number: int, end: float, tally: Tally) -> None:
    rng = random.Random(number)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        while time.monotonic() < end:
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(24, 96))]
            rows = [prompt + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 64))] for _ in range(MEMBERS)]
            body = json.dumps({"sequences": [{"token_ids": row, "from": len(prompt)} for row in rows]}).encode()
            expected = [len(row) - len(prompt) for row in rows]
            tally.add("asked")
            began = time.monotonic()
            if not await _answered(reader, writer, body, expected, tally):
                return
            tally.seconds.append(time.monotonic() - began)
            tally.counts["tokens"] += sum(map(len, rows))
    finally:
        writer.close()


async def _answered(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, expected: list[int], tally: Tally
) -> bool:
    """Ask until the values came; False when the connection was lost."""
    while True:
        try:
            status, headers, answer = await asyncio.wait_for(_exchange(reader, writer, body), 120)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            tally.add("lost", repr(error))
            return False
        if status == 503:
            tally.add("told to wait")
            if "retry-after" not in headers:
                tally.add("without Retry-After", answer.decode())
            # Spread, so that those who were refused together do not come back together.
            await asyncio.sleep(float(headers.get("retry-after", 1)) * random.uniform(0.5, 1.5))
            continue
        if status != 200:
            tally.add("error", f"{status} {answer[:200].decode()}")
        elif [len(values) for values in json.loads(answer)["values"]] != expected:
            tally.add("wrong", answer[:200].decode())
        else:
            tally.add("answered")
        return True


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    head = (
        f"POST /v1/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def start_server(folder: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """`lecritique serve-value` on a new critic of the tiny model, and its port."""
    from lecritique.config.losses import Bce
    from lecritique.models.loading import load_causal_lm
    from lecritique.models.value_model import ValueModel, save_value_model

    save_value_model(ValueModel.from_policy(load_causal_lm("tiny").model, Bce(), seed=0), folder / "critic")
    command = [sys.executable, "-m", "lecritique.cli.main", "serve-value", str(folder), "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="")
        if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
            return server, int(found[1])
    raise SystemExit("the server did not start")


def main() -> None:
    """Run the load and print what the clients saw; exit code 1 when anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--beyond", action="store_true", help="a queue of 8,192 tokens, far below what the clients ask")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(Path(folder), *(("--queue-tokens", "8192") if options.beyond else ()))
        try:
            began = time.monotonic()
            tally = asyncio.run(load("127.0.0.1", port, clients=options.clients, seconds=options.seconds))
            elapsed = time.monotonic() - began
        finally:
            server.terminate()
            print(server.communicate(timeout=60)[0], end="")
    print("\n".join(tally.lines(elapsed)))
    bad = tally.counts["lost"] + tally.counts["error"] + tally.counts["wrong"] + tally.counts["without Retry-After"]
    waited_as_meant = bool(tally.counts["told to wait"]) == options.beyond
    raise SystemExit(0 if not bad and waited_as_meant and server.returncode == 0 else 1)


if __name__ == "__main__":
    main()
