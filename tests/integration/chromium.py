"""A headless Chromium, driven over a pipe: what a reader of a page does and sees."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SKIP_VARIABLE = "LECRITIQUE_SKIP_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE = 40.0
# The browser reads commands from descriptor 3 and writes answers to 4.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


def chromium() -> str:
    """The browser's path. A machine without one fails the test, unless it says that it may skip it."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        if os.environ.get(SKIP_VARIABLE) == "1":
            pytest.skip(f"no Chromium here, and {SKIP_VARIABLE}=1")
        pytest.fail(f"no Chromium on the path ({', '.join(_NAMES)}); {SKIP_VARIABLE}=1 skips what needs it")
    return found


class Tab:
    """One page. `said` are the browser's messages since the start: errors, console, requests."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._read = b""
        self._session: str | None = None
        self.said: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        until = time.monotonic() + _PATIENCE
        while True:
            message = self._message(until, method)
            if message.get("id") != number:
                self.said.append(message)
                continue
            if "error" in message:
                raise AssertionError(f"{method}: {message['error']}")
            result: dict[str, Any] = message["result"]
            return result

    def open(self, address: str) -> None:
        """Go to a page; to one that differs after '#' alone, stay on it."""
        self.call("Page.navigate", url=address)

    def see(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> Any:
        """The value of an expression once it is true; what it names may not be there before."""
        until = time.monotonic() + seconds
        guarded = f"(() => {{ try {{ return ({expression}); }} catch {{ return null; }} }})()"
        while not (found := self.see(guarded)):
            if time.monotonic() > until:
                raise AssertionError(f"not so within {seconds} s: {expression}\n{self.see('document.body.innerText')}")
            time.sleep(0.05)
        return found

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        box = self.see(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector: str, words: str) -> None:
        """Type into a field."""
        self.click(selector)
        self.call("Input.insertText", text=words)

    def choose(self, selector: str, value: str) -> None:
        """Choose an entry of a list."""
        self.see(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)}; "
            "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def press(self, key: str) -> None:
        """Press a key, such as ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width: int, height: int) -> None:
        """The window's size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, file: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Save what the page looks like at that size."""
        self.resize(width, height)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        time.sleep(0.3)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, what the console was told, and what the page's own policy refused."""
        self.see("1")
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(each["params"])[:500] for each in self.said if each.get("method") in kinds]

    @property
    def requested(self) -> set[str]:
        """Where the page has asked for something: scheme and host of every request."""
        urls = [e["params"]["request"]["url"] for e in self.said if e.get("method") == "Network.requestWillBeSent"]
        return {url if url.startswith("data:") else "/".join(url.split("/")[:3]) for url in urls}

    def _message(self, until: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise AssertionError(f"Chromium did not answer {waiting_for} within {_PATIENCE} s")
            data = os.read(self._answers, 2**20)
            if not data:
                raise AssertionError(f"Chromium ended before it answered {waiting_for}")
            self._read += data
        raw, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """A page in a browser of its own, with a profile of its own."""
    program = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (read_commands, commands), (answers, write_answers) = os.pipe(), os.pipe()
        # Out of the way of the descriptors that they become.
        theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (read_commands, write_answers)]
        os.close(read_commands)
        os.close(write_answers)
        flags = (
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        )  # fmt: skip
        browser = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *map(str, theirs), program, *flags],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        for descriptor in theirs:
            os.close(descriptor)
        try:
            yield Tab(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait(_PATIENCE)
