"""Ctrl-C is remembered once, raised the second time, and left alone where it is ignored."""

import signal
import threading
import time

import pytest

from gyromc.show import progress as interruption
from gyromc.show.progress import Progress, interruptible, progress, unhurried


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


LIMIT = 100  # seconds; only reached where a signal never comes


def work_until(condition):
    """Compute, as a block without checks does, until a condition holds."""
    end = time.perf_counter() + LIMIT
    while not condition() and time.perf_counter() < end:
        sum(range(1000))


def test_a_block_without_checks_ends_when_patience_does(sigint):
    sigint(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), interruptible(patience=0.05), interruptible():  # noqa: PT012  # works after the signal
        signal.raise_signal(signal.SIGINT)
        work_until(lambda: False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_being_saved_is_not_ended_by_patience(sigint, monkeypatch):
    sigint(signal.default_int_handler)
    presses, send = [], signal.raise_signal
    monkeypatch.setattr(signal, "raise_signal", lambda number: (presses.append(number), send(number)))
    monkeypatch.setattr(interruption, "AGAIN", 0.01)
    saved = False
    with pytest.raises(KeyboardInterrupt), interruptible(patience=0.01), interruptible():  # noqa: PT012  # works after the signal
        signal.raise_signal(signal.SIGINT)
        with unhurried():
            work_until(lambda: len(presses) > 3)
            saved = True
        work_until(lambda: False)
    assert saved
    with pytest.raises(KeyboardInterrupt), interruptible() as stop, unhurried():  # noqa: PT012  # the user presses twice
        signal.raise_signal(signal.SIGINT)
        assert stop
        signal.raise_signal(signal.SIGINT)


def test_patience_that_ends_as_the_block_does_sends_no_signal_after_it(sigint, monkeypatch):
    """A thread that is slow to go on after its wait finds the block over."""
    late = []

    class Slow(threading.Event):
        def wait(self, timeout=None):
            found = super().wait(timeout)
            super().wait(LIMIT)
            return found

    sigint(lambda number, frame: late.append(number))
    monkeypatch.setattr(interruption.threading, "Event", Slow)
    before = set(threading.enumerate())
    with interruptible(patience=0.01):
        signal.raise_signal(signal.SIGINT)
        (thread,) = set(threading.enumerate()) - before
        thread.join(0.05)  # its wait ends meanwhile
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert late == []


def test_a_press_as_the_block_ends_is_not_lost(sigint, monkeypatch):
    heard, restore = [], signal.signal
    sigint(lambda number, frame: heard.append(number))

    def pressed(number, handler):
        if not heard and not isinstance(handler, interruption._Press):
            signal.raise_signal(signal.SIGINT)  # the handler of the block is still set
        return restore(number, handler)

    monkeypatch.setattr(signal, "signal", pressed)
    with interruptible() as stop:
        pass
    assert not stop
    assert heard == [signal.SIGINT]
