"""Tasks give the same results wherever they are computed; errors, deaths and Ctrl-C are noticed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gyromc
from gyromc.errors import InvalidInput
from gyromc.paper.computation import WorkerTask, computed, fastest
from gyromc.show.progress import Progress
from support import chores

SQUARES = [WorkerTask(f"square of {x}", chores.square, (x,), seconds=x) for x in range(1, 6)]


class Meter(Progress):
    """Adds up the progress and remembers the names."""

    def __init__(self):
        super().__init__(self.started, self.add)
        self.total, self.names = 0.0, []

    def started(self, text):
        self.names.append(text)

    def add(self, amount):
        self.total += amount


def test_here():
    meter = Meter()
    assert list(computed(SQUARES, 1, meter)) == [(i, (i + 1) ** 2) for i in range(5)]
    assert meter.total == pytest.approx(15)
    assert meter.names[2:4] == ["square of 2", "square of 2 (2 of 5)"]
    with pytest.raises(InvalidInput, match=r"^bad: `x` must be positive: got -1\.$"):
        list(computed([WorkerTask("bad", chores.refusing, ())]))
    with pytest.raises(ZeroDivisionError) as raised:
        list(computed([WorkerTask("bad", chores.raising, ())]))
    assert raised.value.__notes__ == ["(while computing bad)"]


def test_processes_give_the_same_with_their_share_of_threads(monkeypatch, tmp_path):
    """Squares, the longest first, and where they were computed."""
    monkeypatch.setenv("GYROMC_THREADS", "6")
    meter = Meter()
    tasks = [*SQUARES, *(WorkerTask(f"where {i}", chores.where, (str(tmp_path), 2), seconds=0.1) for i in range(4))]
    found = dict(computed(tasks, 2, meter))
    assert [found[i] for i in range(5)] == [1, 4, 9, 16, 25]
    assert len({found[i][0] for i in range(5, 9)} - {os.getpid()}) == 2
    assert {found[i][1] for i in range(5, 9)} == {"3"}
    assert meter.total == pytest.approx(sum(task.seconds for task in tasks))
    assert meter.names[-1].endswith("(9 of 9)")


def test_a_worker_that_is_killed_is_said():
    with pytest.raises(InvalidInput, match=r"^bad: a worker process ended before it was finished"):
        list(computed([WorkerTask("bad", chores.dying, ())], 2))


def test_an_error_names_its_task_and_ends_the_others(tmp_path):
    slow = WorkerTask("slow", chores.waiting, (str(tmp_path), 600.0), seconds=9)
    with pytest.raises(
        RuntimeError, match=r"(?s)^bad: ZeroDivisionError: the third way.*In the worker:.*chores\.py"
    ) as raised:
        list(computed([slow, WorkerTask("bad", chores.raising, ())], 2))
    assert "raise ZeroDivisionError" in str(raised.value)
    assert not any(_runs(int(path.name)) for path in tmp_path.iterdir())
    with pytest.raises(InvalidInput, match=r"^bad: `x` must be positive: got -1\.$"):
        list(computed([WorkerTask("bad", chores.refusing, ())], 2))


SCRIPT = """
import signal, sys
from gyromc.paper.computation import WorkerTask, computed
from support import chores
try:
    list(computed([WorkerTask("wait", chores.waiting, (sys.argv[1], 600.0))] * 2, workers=2))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(tmp_path, number, sigint):
    """Ctrl-C, and a kill that leaves no time for anything; the script has no `if __name__ == "__main__"`."""
    sigint(signal.default_int_handler)
    path = [str(Path(gyromc.__file__).parents[1]), str(Path(chores.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "pids").mkdir()
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pids")], env=environment, stdout=subprocess.PIPE, text=True
    )
    found = _until(lambda: [int(path.name) for path in (tmp_path / "pids").iterdir()], 2)
    running.send_signal(number)
    said = running.communicate(timeout=300)[0]
    assert said == ("interrupted\n" if number == signal.SIGINT else "")
    _until(lambda: [pid for pid in found if not _runs(pid)], 2)


def _until(look, count, seconds=300):
    """What `look` returns once it has so many entries."""
    deadline = time.monotonic() + seconds
    while len(found := look()) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_how_many_processes_are_the_fastest(monkeypatch):
    for available, seconds, processes in (
        (2, [100.0] * 50, 2),
        (64, [170.0] * 8 + [1.0] * 1300, 12),  # five threads each: the longest takes as long as all the rest
        (8, [1.0] * 10, 1),  # ten seconds
        (8, [60.0], 1),
        (8, [], 1),
    ):
        monkeypatch.setenv("GYROMC_THREADS", str(available))
        assert fastest(seconds) == processes
