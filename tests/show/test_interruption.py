"""Ctrl-C is remembered once, raised the second time, and left alone where it is ignored."""

import signal
import threading
import time

import pytest

from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress, progress


def test_the_first_press_is_remembered_and_the_second_raised(sigint, capsys):
    sigint(signal.default_int_handler)
    with interruptible("stopping soon") as stop:
        stop.check()
        assert not stop
        signal.raise_signal(signal.SIGINT)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == "gyromc: stopping soon\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_signal_stays_ignored(sigint):
    sigint(signal.SIG_IGN)
    with interruptible() as stop:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    assert not stop


def test_other_threads_change_no_handler(sigint):
    sigint(signal.default_int_handler)
    found = []

    def work():
        with interruptible() as stop:
            found.append((bool(stop), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, signal.default_int_handler)]


def test_progress_is_written_to_standard_error_and_only_where_wanted(capsys):
    Progress().describe("nothing")
    for total in (10, None):
        with progress(total, wanted=True, description="h [cm] [/x]", done=5) as shown:
            shown.advance(2.5)
            shown.describe("[/y]")
    written = capsys.readouterr()
    assert written.out == ""
    assert "[/y]" in written.err
    assert "75%" in written.err
    with progress(10) as shown:  # no terminal
        shown.advance(1)
    assert capsys.readouterr().err == ""


def test_a_press_in_an_inner_block_is_known_outside(sigint, capsys):
    sigint(signal.default_int_handler)
    with interruptible("outer") as outer, interruptible("inner") as inner:
        signal.raise_signal(signal.SIGINT)
        assert inner
        assert outer
    assert capsys.readouterr().err == "gyromc: inner\n"


def test_a_block_without_checks_ends_when_patience_does(sigint):
    sigint(signal.default_int_handler)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), interruptible(patience=0.05), interruptible():  # noqa: PT012  # works after the signal
        signal.raise_signal(signal.SIGINT)
        while time.perf_counter() - began < 10:
            sum(range(1000))
    assert time.perf_counter() - began < 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
