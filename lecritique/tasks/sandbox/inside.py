"""The process inside the sandbox: waits for a job, runs it, says what came out. Alone in there; standard library only.

Started as `python inside.py SETTINGS`, with jobs on descriptor 0 and results on descriptor RESULTS. Both are
frames: eight bytes of length, then JSON. What a job does to this process stays in this process.
"""

import contextlib
import fcntl
import json
import os
import resource
import sys
from typing import Any


def main() -> None:
    settings = json.loads(sys.argv[1])
    results = settings["results_descriptor"]
    restrict(settings)
    sys.path.extend(settings["packages"])
    shared: dict[str, Any] = {"__name__": "prelude"}
    exec(compile(settings["prelude"], "<prelude>", "exec"), shared)
    jobs = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    write_frame(results, {"ready": True})
    while True:
        job = read_frame(jobs)
        if job is None:
            return
        if not settings["reuse"]:
            os.close(jobs)
        if not settings["reuse"]:  # a hard limit cannot be raised for the next job; the wall limit holds
            limit_processor(settings)
        answer = outcome(job, shared)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):  # the job may have closed or replaced it
                stream.flush()
        write_frame(results, {**answer, "token": job["token"]})
        if not settings["reuse"]:
            os._exit(0)


def restrict(settings: dict[str, Any]) -> None:
    """Limits that no later code can raise again: there is no capability to."""
    for name, most in (
        ("RLIMIT_AS", settings["memory_bytes"]),
        ("RLIMIT_FSIZE", settings["file_bytes"]),
        ("RLIMIT_NOFILE", settings["open_files"]),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MEMLOCK", 0),
    ):
        resource.setrlimit(getattr(resource, name), (most, most))


def limit_processor(settings: dict[str, Any]) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime) + 1 + settings["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def outcome(job: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """What `job` did: {"kind": ..., "value": ...} or {"kind": ..., "error": ...}."""
    try:
        if job["mode"] == "program":
            return {"kind": "output", "value": program(job)}
        value = call(job, shared)
        return {"kind": "output", "value": json.loads(json.dumps(value))}
    except SystemExit as end:
        return ended(end, job["mode"])
    except BaseException as error:  # whatever the job raises is its result
        return {"kind": "error", "error": described(error)}


def program(job: dict[str, Any]) -> int:
    """Run the source as a script with `stdin` as its input; 0, as for a process that ends by itself."""
    read_end, write_end = os.pipe()
    text = job["stdin"].encode("utf-8", "surrogatepass")
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(write_end, False)
    if text and os.write(write_end, text) < len(text):
        raise ValueError(f"the standard input of {len(text)} bytes does not fit a pipe")
    os.close(write_end)
    os.dup2(read_end, 0)
    sys.argv = ["program"]
    exec(compile(job["source"], "<program>", "exec"), {"__name__": "__main__"})
    return 0


def call(job: dict[str, Any], shared: dict[str, Any]) -> Any:
    """The function's result; a job without source calls a function of the prelude."""
    names = shared
    if job["source"]:
        names = {"__name__": "program"}
        exec(compile(job["source"], "<program>", "exec"), names)
    return names[job["function"]](**job["arguments"])


def ended(end: SystemExit, mode: str) -> dict[str, Any]:
    code = end.code
    if mode == "program" and (code is None or (type(code) is int and code == 0)):
        return {"kind": "output", "value": 0}
    return {"kind": "error", "value": code if type(code) is int else 1, "error": f"SystemExit: {described(code)}"}


def described(error: Any) -> str:
    """One line about anything, including objects whose text is a trap."""
    try:
        name = type(error).__name__
        text = "".join(" " if character in "\r\n" else character for character in str(error)[:500])
        return f"{name}: {text}"
    except BaseException:
        return "an object whose text cannot be made"


def write_frame(descriptor: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(descriptor, data) :]


def read_frame(descriptor: int) -> dict[str, Any] | None:
    size = read_exactly(descriptor, 8)
    if size is None:
        return None
    data = read_exactly(descriptor, int.from_bytes(size, "big"))
    return None if data is None else json.loads(data)


def read_exactly(descriptor: int, count: int) -> bytes | None:
    parts, missing = [], count
    while missing:
        part = os.read(descriptor, min(missing, 1 << 16))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
