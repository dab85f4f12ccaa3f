"""The process in which answers are compared, and the one module that imports `math_verify`.

Run as a script. It reads one JSON request a line from standard input and writes one JSON reply a line: the
process imports the library once, forks a child for each request and kills the child at the wall limit. Fresh
children make a comparison independent of earlier ones. math_verify's own time limits are off: they are signals
that fail outside the main thread and that a long C call ignores.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

_MEMORY_BYTES = 2 << 30
# A child that nobody waits for any more (its parent was killed) ends itself this long after its limit.
_ORPHAN_SECONDS = 0.5
_STDIN = 0
_TIMEOUT = {"outcome": "timeout", "detail": ""}
_DIED = {"outcome": "died", "detail": "the process ended without an answer"}


def compare(gold: str, answer: str, *, whole: bool) -> tuple[str, str]:
    """Outcome and detail of one comparison.

    Args:
        gold: the gold answer, bare.
        answer: the content of a box, or a whole response.
        whole: whether `answer` is a whole response, from which math_verify extracts.
    """
    import math_verify

    latex = [math_verify.LatexExtractionConfig()]
    # Texts that cannot be parsed give an empty list: by default this function swallows its errors.
    parsed_gold = math_verify.parse(f"${gold}$", latex, parsing_timeout=None)
    if whole:
        parsed = math_verify.parse(answer, parsing_timeout=None)
    else:
        parsed = math_verify.parse(f"\\boxed{{{answer}}}", latex, parsing_timeout=None)
    try:
        if parsed_gold == [] or parsed == []:
            return "different", ""
        return ("equal" if _verified(parsed_gold, parsed) else "different"), ""
    except (MemoryError, RecursionError) as error:
        return "exhausted", type(error).__name__
    except Exception as error:  # the library's own fault, unless the answer has no value (1/0)
        if not _has_value(parsed):
            return "different", "the answer has no value"
        return "raised", f"{type(error).__name__}: {str(error)[:200]}"


def _verified(gold: Any, answer: Any) -> bool:
    import math_verify

    return bool(math_verify.verify(gold, answer, timeout_seconds=None, raise_on_error=True))


def _has_value(parsed: Any) -> bool:
    """Whether a parsed answer can be compared at all, be it with itself."""
    try:
        _verified(parsed, parsed)
    except Exception:
        return False
    return True


def _child(request: dict[str, Any], pipe: int) -> None:
    """Compare, write the reply, exit. Never returns."""
    code = 1
    try:
        limit = float(request["limit_seconds"])
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit + _ORPHAN_SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        outcome, detail = compare(request["gold"], request["answer"], whole=request["whole"])
        os.write(pipe, json.dumps({"outcome": outcome, "detail": detail}).encode())
        code = 0
    finally:
        os._exit(code)


def _answered(request: dict[str, Any]) -> dict[str, str] | None:
    """The reply to one request, at the limit at the latest; None when nobody waits for it any more."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(request, writer)
    os.close(writer)
    try:
        reply = _waited_for(reader, float(request["limit_seconds"]))
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reader)
    if reply == _DIED and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        # On a machine that gave this process no time to look, the child's own alarm came first.
        return _TIMEOUT
    return reply


def _waited_for(reader: int, limit_seconds: float) -> dict[str, str] | None:
    deadline = time.monotonic() + limit_seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([reader, _STDIN], [], [], left)
        if _STDIN in ready:  # requests come one at a time, so this is the end of the input
            return None
        if reader in ready:
            data = os.read(reader, 65536)
            return json.loads(data) if data else _DIED
    return _TIMEOUT


def serve() -> None:
    """Answer requests until the input ends."""
    replies = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    # Imports and grammar tables are paid for here, once, and inherited by every child.
    compare("1/3", r"\frac13", whole=False)
    compare("(1,2)", r"\{x^2+1\}", whole=False)
    compare("1", "so it is 1", whole=True)
    os.write(replies, b"ready\n")
    waiting = b""
    while chunk := os.read(_STDIN, 1 << 20):
        waiting += chunk
        if not waiting.endswith(b"\n"):
            continue
        reply = _answered(json.loads(waiting))
        waiting = b""
        if reply is None:
            return
        os.write(replies, json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    serve()
    sys.exit(0)
