"""Several processes: they meet or say why not, agree on values, and none waits for one that is gone."""

import concurrent.futures
import json
import os
import socket
import sys
import threading
import time

import numpy as np
import pytest

import gyromc as gm
from gyromc import processes
from gyromc import processes as starting
from gyromc.processes import connecting
from support.launch import Ended, ended, free_port, started


def test_one_process_needs_nothing():
    value, array = {"a": 1}, np.arange(3.0)
    assert (processes.count(), processes.index()) == (1, 0)
    assert processes.agree(value) is value
    assert processes.everyone(value) == [value]
    assert processes.joined(array) is array
    assert np.array_equal(processes.gathered(array), array)
    processes.leave(3)  # nobody to tell


# --- who they are


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GYROMC_COORDINATOR": "a:1", "GYROMC_PROCESSES": "4", "GYROMC_PROCESS_ID": "2"}, ("a:1", 4, 2)),
        ({"GYROMC_COORDINATOR": "a:1", "GYROMC_PROCESSES": "4", "JOB_COMPLETION_INDEX": "3"}, ("a:1", 4, 3)),
        ({"GYROMC_COORDINATOR": "a:1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, ("a:1", 4, 0)),
        ({"GYROMC_COORDINATOR": "a:1", "PMI_SIZE": "4", "PMI_RANK": "1"}, ("a:1", 4, 1)),
        (
            {
                "SLURM_JOB_ID": "4100",
                "SLURM_STEP_NODELIST": "n[07-09],m1",
                "SLURM_NTASKS": "8",
                "SLURM_PROCID": "5",
                "SLURM_LOCALID": "1",
            },
            ("n07:61444", 8, 5),
        ),
        (
            {
                "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            (f"10.96.0.1:{1531576320 // 4096 % 4096 + 61440}", 4, 3),
        ),
    ],
    ids=["ours", "kubernetes", "open mpi 5", "mpich", "slurm", "open mpi 4"],
)
def test_launchers_are_recognised(environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert starting._who(None, None, None, 10) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), r"no launcher says .*--coordinator.*--processes.*--process-id"),
        (("a:1", 2, None), r"no launcher says .*: the number of this one"),
        (("a:1", 2, 2), r"with 2 processes the last is 1, got 2"),
        (("a:1", 2, -1), r"`process_id` must be"),
        (("a:1", 0, 0), r"`num_processes` must be"),
        (("a", 2, 1), r"given as `host:port`.*got 'a'"),
        (("a:0", 2, 1), r"given as `host:port`"),
    ],
)
def test_a_wrong_start_is_refused(arguments, message):
    with pytest.raises(gm.InvalidInput, match=message):
        processes.start(*arguments)


def test_an_environment_variable_that_is_no_number(monkeypatch):
    monkeypatch.setenv("GYROMC_PROCESS_ID", "two")
    with pytest.raises(gm.InvalidInput, match="GYROMC_PROCESS_ID must be a whole number: it is 'two'"):
        processes.start("a:1", 2)


# --- connecting


WAIT = 100  # seconds; only reached where something is wrong


class Clock:
    """A clock that can be put forward: what waits for a moment waits no longer, however slow the machine is."""

    def __init__(self):
        self.ahead, self.sleep = 0.0, time.sleep

    def monotonic(self):
        return time.monotonic() + self.ahead

    def forward_after(self, function):
        """The same function; when it has returned, all of the time to wait is over."""

        def wrapped(*arguments):
            found = function(*arguments)
            self.ahead = WAIT
            return found

        return wrapped


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(connecting, "time", made)
    return made


def meetings(*calls, timeout=WAIT):
    """The results of `meet`, or their errors as text, of processes given as (count, index)."""
    address = f"localhost:{free_port()}"

    def one(count, index):
        try:
            return connecting.meet(address, count, index, timeout)
        except gm.InvalidInput as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(one, *call) for call in calls]]


def test_all_meet():
    found = meetings((3, 0), (3, 1), (3, 2))
    assert [[link.index for link in links] for links in found] == [[1, 2], [0], [0]]
    assert all(link.place.endswith(f"pid {os.getpid()}") for links in found for link in links)


def test_two_with_one_number():
    for said in meetings((3, 0), (3, 1), (3, 1)):
        assert "Two processes have the number 1" in said


def test_other_numbers_of_processes():
    for said in meetings((2, 0), (3, 1)):
        assert "Process 1" in said
        assert "as one of 3 processes, process 0 as one of 2" in said


def test_other_versions(monkeypatch):
    versions = iter(["0.1.0", "0.2.0"])
    monkeypatch.setattr(connecting, "_version", lambda: next(versions))
    for said in meetings((2, 0), (2, 1)):
        assert "has gyromc 0." in said
        assert "Install one version everywhere" in said


def test_one_that_never_comes(clock, monkeypatch):
    """The time is over as soon as process 2 has said who it is."""
    monkeypatch.setattr(connecting, "HELLO", WAIT)
    monkeypatch.setattr(connecting, "_wrong", clock.forward_after(connecting._wrong))
    first, second = meetings((3, 0), (3, 2))
    assert first == second
    assert f"After {WAIT} s, 2 of 3 processes were there; missing: 1." in first


def test_nobody_at_the_address():
    (said,) = meetings((2, 1), timeout=0.3)
    assert "cannot be reached at localhost:" in said
    assert "tried for 0.3 s" in said


def test_the_port_is_in_use():
    with (
        socket.create_server(("", 0)) as server,
        pytest.raises(gm.InvalidInput, match=f"Port {(port := server.getsockname()[1])} .* is in use"),
    ):
        connecting.meet(f"localhost:{port}", 2, 0, 1)


def test_another_program_answers(clock, monkeypatch):
    """The time is over as soon as it has answered."""
    monkeypatch.setattr(connecting.Link, "line", clock.forward_after(connecting.Link.line))
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400\r\n\r\n"), daemon=True).start()
        with pytest.raises(gm.InvalidInput, match="answers, but does not take process 1"):
            connecting.meet(f"localhost:{port}", 2, 1, WAIT)


LIST = json.dumps({"gyromc": gm.__version__, "index": [], "of": 2, "place": ""}).encode() + b"\n"


def test_strangers_do_not_disturb(monkeypatch):
    """A port scanner says nothing, or something else; the run starts all the same."""
    monkeypatch.setattr(connecting, "HELLO", 0.2)
    port, found = free_port(), []
    first = threading.Thread(target=lambda: found.append(connecting.meet(f"localhost:{port}", 2, 0, WAIT)))
    first.start()
    for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"index": 1}\n', LIST, b"\xff" * 10):
        while first.is_alive():
            try:
                stranger = socket.create_connection(("localhost", port))
                break
            except OSError:
                time.sleep(0.01)
        stranger.sendall(greeting)
    connecting.meet(f"localhost:{port}", 2, 1, WAIT)
    first.join()
    assert [link.index for link in found[0]] == [1]


# --- a process that is gone: one program forks the processes of all cases, without JAX, which the watch does not need

WATCHED = """
import json, multiprocessing, os, signal, sys, tempfile, time
from pathlib import Path
from gyromc.processes import leave, watching
from gyromc.processes.connecting import meet

watching.BEAT = 0.4
LONG = 200  # seconds; nobody waits for so long


def act(index, what, who):
    if who not in (index, "all"):
        time.sleep(0.5 * index if what == "done" else LONG)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raises":
        raise ValueError("an error of its own")
    elif what == "leaves":
        leave(9)
    elif what == "refused":
        leave(2)
    elif what == "aborts":
        os.abort()


def wait_until_stopped(place):
    pid = place.rpartition(" ")[2]
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


def child(index, count, port, what, who, err, together):
    os.dup2(err, 2)
    sys.stderr = os.fdopen(2, "w")
    # Two errors at once are each process' own where both come within the grace, on a slow machine too.
    watching.GRACE = 3.0 if who == "all" else 0.5
    try:
        links = meet(f"localhost:{port}", count, index, LONG)
        if what == "stopped" and index != who:
            wait_until_stopped(links[0].place)  # before that, a slow machine could be taken for a silent one
        watching.watch(links, index, silence=2.0 if what == "stopped" else LONG)
        if what != "stopped":
            together.wait()
        act(index, what, who)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    watching._watch.finish()
    os._exit(0)


cases, ended = json.loads(sys.argv[1]), {}
barriers = [multiprocessing.get_context("fork").Barrier(count) for count, *_ in cases]  # kept: they have memory in common
for number, (count, port, what, who) in enumerate(cases):
    for index in range(count):
        err = tempfile.TemporaryFile()
        if (pid := os.fork()) == 0:
            child(index, count, port, what, who, err.fileno(), barriers[number])
        ended[pid] = (number, index, what == "stopped" and index == who, err)
found, began = [], time.monotonic()
while ended and time.monotonic() - began < LONG:
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid == 0:
        time.sleep(0.01)
        if all(stopped for _, _, stopped, _ in ended.values()):
            [os.kill(pid, signal.SIGKILL) for pid in ended]
        continue
    number, index, _, err = ended.pop(pid)
    err.seek(0)
    found.append((number, index, os.waitstatus_to_exitcode(status), err.read().decode(), time.monotonic() - began))
[os.kill(pid, signal.SIGKILL) for pid in ended]
print(json.dumps(sorted(found)))
"""
AT_ONCE = 60  # seconds, on any machine; without a watch the others would wait for 200
CASES = {
    "first killed": (3, "killed", 0),
    "other killed": (3, "killed", 1),
    "stopped": (2, "stopped", 1),
    "first raises": (2, "raises", 0),
    "other raises": (2, "raises", 1),
    "all raise": (2, "raises", "all"),
    "leaves": (2, "leaves", 1),
    "refused": (3, "refused", 1),
    "aborts": (2, "aborts", 1),
    "done": (3, "done", None),
}


@pytest.fixture(scope="module")
def watched():
    """How the processes of every case ended, by the case and the index."""
    cases = [(count, free_port(), what, who) for count, what, who in CASES.values()]
    (done,) = ended(started([[sys.executable, "-c", WATCHED, json.dumps(cases)]]))
    assert done.status == 0, done.err
    found = {name: {} for name in CASES}
    for number, index, *how in json.loads(done.out):
        found[list(CASES)[number]][index] = Ended(how[0], "", how[1], how[2])
    return found


@pytest.mark.parametrize(("case", "who"), [("first killed", 0), ("other killed", 1)])
def test_a_killed_process_ends_the_others_at_once(case, who, watched):
    found = watched[case]
    assert found[who].status == -9
    for i in {0, 1, 2} - {who}:
        assert found[i].status == processes.LOST == 75
        assert f"gyromc: process {i} ends, because process {who} (" in found[i].err
        assert "ended without a word: it was killed" in found[i].err
        assert found[i].seconds - found[who].seconds < AT_ONCE


def test_a_silent_machine_is_noticed(watched):
    first, second = watched["stopped"][0], watched["stopped"][1]
    assert (first.status, second.status) == (processes.LOST, -9)
    assert "process 1 (" in first.err
    assert "was not heard of for 2 s" in first.err


@pytest.mark.parametrize(("case", "who"), [("first raises", {0}), ("other raises", {1}), ("all raise", {0, 1})])
def test_an_error_of_one_process_ends_the_others(case, who, watched):
    for i in (0, 1):
        process = watched[case][i]
        assert process.status == (1 if i in who else processes.LOST)
        assert ("ValueError: an error of its own" in process.err) == (i in who)
        assert (f"process {1 - i} (" in process.err) == (i not in who)
        assert ("ended with status 1: see its message" in process.err) == (i not in who)


def test_a_status_is_passed_on(watched):
    assert (watched["leaves"][0].status, watched["leaves"][1].status) == (processes.LOST, 9)
    assert "ended with status 9" in watched["leaves"][0].err


def test_what_cannot_work_ends_all_with_its_status(watched):
    # a launcher that starts a job with status 75 again would do so for ever
    assert [process.status for process in watched["refused"].values()] == [2, 2, 2]
    for i in (0, 2):
        assert "ended with status 2: see its message. Put that right" in watched["refused"][i].err


def test_an_abort_by_a_library_is_said(watched):
    assert (watched["aborts"][0].status, watched["aborts"][1].status) == (processes.LOST, 134)
    assert "process 1 was aborted by a library" in watched["aborts"][1].err


def test_nobody_ends_before_the_others_are_done(watched):
    assert [(process.status, process.err) for process in watched["done"].values()] == [(0, "")] * 3
