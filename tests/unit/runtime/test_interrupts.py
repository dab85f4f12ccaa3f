"""The first signal asks, the second ends; nothing stays installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from lecritique.runtime.interrupts import Interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_asks_and_says_so_and_the_second_ends(number, capfd) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interrupts() as interrupts:
        assert not interrupts.requested
        os.kill(os.getpid(), number)
        assert interrupts.requested and interrupts.wait(0)
        said = capfd.readouterr().err
        assert said.startswith("lecritique: stopping") and said.count("\n") == 1 and "second Ctrl-C" in said
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_two_signals_of_different_kinds_end_too(capfd) -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), Interrupts():
        1 / 0  # noqa: B018
    assert signal.getsignal(signal.SIGTERM) == before


def test_on_another_thread_nothing_is_installed_and_it_can_be_asked() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with Interrupts() as interrupts:
            seen.append((signal.getsignal(signal.SIGTERM), interrupts.requested))
            interrupts.request()
            seen.append(interrupts.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False), True]


def test_a_terminal_that_is_gone_does_not_matter() -> None:
    code = (
        "import os, signal\n"
        "from lecritique.runtime.interrupts import Interrupts\n"
        "os.close(2)\n"
        "with Interrupts() as interrupts:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    assert interrupts.requested\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
