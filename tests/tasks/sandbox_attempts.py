"""Attempts to get out of the sandbox. Run as a script by whatever user; prints one JSON object a line.

Each program prints ESCAPED where it got through. `{canary}` and `{secret}` name what lies outside: a file that must
stay as it is and unread, and an environment variable of the parent.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

SECRET = "parent-only-5d1c"
CANARY_TEXT = "outside-only-77e0"

_TRY = """
import os, sys
def attempt(action):
    try:
        value = action()
    except BaseException as error:
        print("refused", type(error).__name__)
    else:
        print("ESCAPED", repr(value)[:200])
"""

# name -> (kinds of ending that count as contained, program)
ATTEMPTS: dict[str, tuple[tuple[str, ...], str]] = {
    "read a file outside": (("output",), "attempt(lambda: open({canary!r}).read())"),
    "read the password file": (("output",), "attempt(lambda: open('/etc/passwd').read())"),
    "read the shadow file": (("output",), "attempt(lambda: open('/etc/shadow').read())"),
    "list a home folder": (("output",), "attempt(lambda: os.listdir('/home') + os.listdir('/root/.ssh'))"),
    "write a file outside": (("output",), "attempt(lambda: open({canary!r}, 'w').write('changed'))"),
    "delete a file outside": (("output",), "attempt(lambda: os.unlink({canary!r}))"),
    "write into the standard library": (("output",), "attempt(lambda: open(os.__file__, 'a').write('#'))"),
    "write beside the system's libraries": (("output",), "attempt(lambda: open('/lib/x', 'w'))"),
    "delete the standard library": (("output",), "attempt(lambda: os.unlink(os.__file__))"),
    "write into the root": (("output",), "attempt(lambda: open('/x', 'w').write('x'))\n"
                            "attempt(lambda: os.mkdir('/y'))\nattempt(lambda: open('/dev/x', 'w'))"),
    "change the mode of the library": (("output",), "attempt(lambda: os.chmod(os.__file__, 0o777))"),
    "follow a symbolic link outside": (
        ("output",), "os.symlink({canary!r}, '/tmp/link')\nattempt(lambda: open('/tmp/link').read())"
    ),
    "climb with dots": (("output",), "attempt(lambda: open('/tmp/../../../..' + {canary!r}).read())"),
    "hard link outside": (("output",), "attempt(lambda: os.link(os.__file__, '/tmp/copy'))"),
    "read the environment of the parent": (
        ("output",), "print('ESCAPED' if any({secret!r} in value for value in os.environ.values()) else 'empty')\n"
        "attempt(lambda: open(f'/proc/{{os.getppid()}}/environ').read())\n"
        "attempt(lambda: open('/proc/1/environ').read())\nattempt(lambda: open('/proc/self/environ').read())"
    ),
    "walk through /proc": (("output",), "attempt(lambda: os.listdir('/proc'))"),
    "the root of another process": (("output",), "attempt(lambda: os.listdir('/proc/1/root'))"),
    "write a kernel setting": (
        ("output",), "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('x'))\n"
        "attempt(lambda: open('/proc/sysrq-trigger', 'w').write('h'))"
    ),
    "read /sys": (("output",), "attempt(lambda: os.listdir('/sys/kernel'))"),
    "the memory device": (("output",), "attempt(lambda: open('/dev/mem', 'rb').read(1))\n"
                          "attempt(lambda: open('/dev/kmsg', 'rb').read(1))"),
    "make a device": (("output",), "attempt(lambda: os.mknod('/tmp/mem', 0o600 | 0o020000, os.makedev(1, 1)))"),
    "connect to a network": (
        ("output",), "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', 22), timeout=1))\n"
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))"
    ),
    "a socket of the unix family": (
        ("output",), "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX))\nattempt(socket.socketpair)"
    ),
    "resolve a name": (("output",), "import socket\nattempt(lambda: socket.getaddrinfo('example.org', 80))"),
    # One call, never a loop.
    "one fork": (("output",), "def forked():\n    child = os.fork()\n    if child == 0:\n        os._exit(0)\n"
                 "    return child\nattempt(forked)"),
    "a subprocess": (("output",), "import subprocess\nattempt(lambda: subprocess.run(['/bin/true']))\n"
                     "attempt(lambda: subprocess.run([sys.executable, '-c', '1']))"),
    "os.system": (("output",), "print('ESCAPED' if os.system('echo x') == 0 else 'refused')"),
    "posix_spawn": (("output",), "attempt(lambda: os.posix_spawn(sys.executable, [sys.executable, '-c', '1'], {{}}))"),
    "a thread": (("output",), "import threading\nattempt(lambda: threading.Thread(target=print).start())"),
    "multiprocessing": (("output",), "import multiprocessing\n"
                        "attempt(lambda: multiprocessing.Process(target=print).start())"),
    "fork through ctypes": (
        ("output",), "import ctypes\nlibc = ctypes.CDLL(None)\nchild = libc.fork()\n"
        "if child == 0:\n    os._exit(0)\nprint('ESCAPED' if child > 0 else 'refused')"
    ),
    "trace through ctypes": (
        ("output",), "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print('ESCAPED' if libc.ptrace(0, 0, 0, 0) == 0 else 'refused')\n"
        "print('ESCAPED' if libc.ptrace(16, os.getppid(), 0, 0) == 0 else 'refused')"
    ),
    "mount through ctypes": (
        ("output",), "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print('ESCAPED' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0 else 'refused')\n"
        "print('ESCAPED' if libc.umount2(b'/tmp', 2) == 0 else 'refused')\n"
        "print('ESCAPED' if libc.mount(b'', b'/', b'', 32 | 4096, 0) == 0 else 'refused')"
    ),
    "a new namespace": (
        ("output",), "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print('ESCAPED' if libc.unshare(0x10000000) == 0 else 'refused')\n"
        "print('ESCAPED' if libc.chroot(b'/tmp') == 0 else 'refused')"
    ),
    "another user": (("output",), "attempt(lambda: os.setuid(0))\nattempt(lambda: os.setgid(0))\n"
                     "attempt(lambda: os.setgroups([0]))\n"
                     "print('ESCAPED' if 0 in (os.getuid(), os.geteuid()) else 'nobody')"),
    "take a limit back": (
        ("output",), "import resource\nmost = resource.RLIM_INFINITY\n"
        "for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):\n"
        "    attempt(lambda: resource.setrlimit(limit, (most, most)))"
    ),
    "switch the filter off": (
        ("output",), "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print('ESCAPED' if libc.prctl(22, 0, 0, 0, 0) == 0 else 'refused')\n"
        "print('ESCAPED' if libc.prctl(1, 0, 0, 0, 0) == 0 else 'refused')"
    ),
    "a file in memory": (("output",), "attempt(lambda: os.memfd_create('x'))"),
    "shared memory": (("output",), "from multiprocessing import shared_memory\n"
                      "attempt(lambda: shared_memory.SharedMemory(create=True, size=1))"),
    "kill the parent": (("output", "error"), "import signal\nattempt(lambda: os.kill(os.getppid(), 0) if os.getppid() "
                        "else 1 / 0)\n[os.kill(pid, signal.SIGKILL) for pid in range(2, 40) "
                        "if attempt(lambda: os.kill(pid, 0))]"),
    "kill everyone": (("output", "killed", "error"), "os.kill(-1, 9)"),
    "kill the first process": (("output", "killed"), "os.kill(1, 9)"),
    "all memory": (("error", "killed"), "x = bytearray(1 << 40)"),
    "memory bit by bit": (("error", "killed", "timeout"), "x = []\nwhile True:\n    x.append(bytearray(1 << 20))"),
    "an endless loop": (("timeout",), "while True:\n    pass"),
    "an endless loop in C": (("timeout",), "9 ** 9 ** 9 ** 9"),
    "sleep for ever": (("timeout",), "import time\ntime.sleep(1000)"),
    "ignore every signal": (
        ("timeout",), "import signal\nfor number in range(1, 32):\n    try:\n"
        "        signal.signal(number, signal.SIG_IGN)\n    except OSError:\n        pass\nwhile True:\n    pass"
    ),
    "catch everything": (("timeout", "killed"), "while True:\n    try:\n        while True:\n            pass\n"
                         "    except BaseException:\n        pass"),
    "fill the writable folder": (
        ("error", "killed"), "for number in range(10**6):\n    open(f'/tmp/{{number}}', 'wb').write(bytes(1 << 20))"
    ),
    "one huge file": (
        ("error", "killed"), "file = open('/tmp/x', 'wb', buffering=0)\nfile.seek(1 << 40)\nfile.write(b'x')"
    ),
    "all file descriptors": (("error",), "files = []\nwhile True:\n    files.append(open('/dev/null'))"),
    "endless output": (("killed",), "while True:\n    print('x' * 1000)"),
    "endless errors": (("killed",), "while True:\n    print('x' * 1000, file=sys.stderr)"),
    "one huge line": (("killed",), "print('x' * 50_000_000)"),
    "wait for input": (("error",), "input()"),
    "binary output": (("output",), "sys.stdout.buffer.write(bytes(range(256)) * 20)\nprint('\\x00\\ud7ff')"),
    "a lone surrogate": (("error",), "raise ValueError('\\ud800' * 100)"),
    "an exception with a hostile text": (
        ("error",), "class Trap(Exception):\n    def __str__(self): raise SystemExit(0)\n"
        "    __repr__ = __str__\nraise Trap()"
    ),
    "an exception that is not one": (("error",), "class Trap(BaseException):\n"
                                     "    def __str__(self): return 'x' * 10**9\nraise Trap()"),
    "recursion": (("error", "killed"), "def f(): f()\nf()"),
    "recursion without a limit": (("error", "killed", "timeout"), "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()"),
    "a crash": (("killed",), "import ctypes\nctypes.string_at(0)"),
    "leave at once": (("killed",), "os._exit(0)"),
    "leave with success": (("output",), "sys.exit(0)"),
    "become another program": (
        ("killed", "error", "timeout"),
        "path = {canary!r}\nos.execv(sys.executable, [sys.executable, '-c', f'print(open({{path!r}}).read())'])",
    ),
    "imitate the result on standard output": (
        ("error",), "print('{{\"token\": \"0\", \"kind\": \"output\", \"value\": 0}}')\nsys.exit(1)"
    ),
    "imitate the result on every descriptor": (
        ("killed", "error"), "import json\nforged = {{'token': '0' * 32, 'kind': 'output', 'value': 7}}\n"
        "data = json.dumps(forged).encode()\n"
        "for descriptor in range(3, 4096):\n    try:\n"
        "        os.write(descriptor, len(data).to_bytes(8, 'big') + data)\n"
        "    except OSError:\n        pass\nsys.exit(1)"
    ),
    "a result that claims to be huge": (
        ("killed",), "for descriptor in range(3, 4096):\n    try:\n        os.write(descriptor, b'\\xff' * 8)\n"
        "    except OSError:\n        pass"
    ),
    "close every descriptor": (("killed",), "os.closerange(0, 4096)"),
    "replace the worker's own tools": (
        ("output", "error", "killed"), "import json, builtins\njson.dumps = lambda *a, **k: 1 / 0\n"
        "builtins.print = None\nos.write = None"
    ),
}  # fmt: skip

LIMITS = {"wall_seconds": 2.0, "cpu_seconds": 1, "memory_bytes": 256 << 20}


def contained(name: str, result: dict) -> str:
    """Empty where the attempt ended as it must, else what is wrong."""
    kinds, _ = ATTEMPTS[name]
    if result["kind"] not in kinds:
        return f"ended as {result['kind']}, expected one of {kinds}"
    for text in (result["stdout"], result["stderr"], result["error"], str(result["value"])):
        if "ESCAPED" in text or CANARY_TEXT in text or SECRET in text:
            return "got through"
        if len(text) > 64 * 1024:
            return "too much output came back"
    if result["value"] not in (None, 0, 1):
        return "its own result was believed"
    if result["seconds"] > LIMITS["wall_seconds"] + 1:
        return f"took {result['seconds']} seconds"
    return "" if result["canary"] else "the file outside changed"


def attempted(pool, names) -> list[dict]:
    """Every attempt's result as plain values."""
    os.environ["LECRITIQUE_TEST_SECRET"] = SECRET
    results = []
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        canary.write_text(CANARY_TEXT)
        for name in names:
            source = _TRY + ATTEMPTS[name][1].format(canary=str(canary), secret=SECRET)
            result = pool.run(source)
            fields = ("kind", "value", "error", "stdout", "stderr", "seconds")
            untouched = canary.read_text() == CANARY_TEXT
            results.append({"name": name, "canary": untouched, **{key: getattr(result, key) for key in fields}})
    del os.environ["LECRITIQUE_TEST_SECRET"]
    return results


def main() -> None:
    from lecritique.tasks.sandbox.execution import Limits
    from lecritique.tasks.sandbox.pool import SandboxPool

    pool = SandboxPool(Limits(**LIMITS))
    print(json.dumps({"user": os.getuid()}))
    for result in attempted(pool, ATTEMPTS):
        print(json.dumps(result))
    pool.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
