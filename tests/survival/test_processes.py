"""Several processes: they meet or say why not, agree on values, and none waits for one that is gone."""

import concurrent.futures
import json
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest

import gyromc as gm
from gyromc import processes
from support.launch import ended, free_port, started


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
    assert processes._who(None, None, None, 10) == expected


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
    monkeypatch.setattr(processes, "time", made)
    return made


def meetings(*calls, timeout=WAIT):
    """The results of `meet`, or their errors as text, of processes given as (count, index)."""
    address = f"localhost:{free_port()}"

    def one(count, index):
        try:
            return processes._meet(address, count, index, timeout)
        except gm.InvalidInput as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(one, *call) for call in calls]]


def test_all_meet():
    assert meetings((3, 0), (3, 1), (3, 2)) == [None] * 3


def test_two_with_one_number():
    for said in meetings((3, 0), (3, 1), (3, 1)):
        assert "Two processes have the number 1" in said


def test_other_numbers_of_processes():
    for said in meetings((2, 0), (3, 1)):
        assert "Process 1" in said
        assert "as one of 3 processes, process 0 as one of 2" in said


def test_other_versions(monkeypatch):
    send = processes._send
    newer = lambda link, content: send(link, content | ({"gyromc": "99.0"} if "gyromc" in content else {}))
    monkeypatch.setattr(processes, "_send", newer)
    for said in meetings((2, 0), (2, 1)):
        assert "has gyromc 99.0" in said
        assert "Install one version everywhere" in said


def test_one_that_never_comes(clock, monkeypatch):
    """The time is over as soon as process 2 has said who it is."""
    monkeypatch.setattr(processes, "HELLO", WAIT)
    monkeypatch.setattr(processes, "_wrong", clock.forward_after(processes._wrong))
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
        processes._meet(f"localhost:{port}", 2, 0, 1)


def test_another_program_answers(clock, monkeypatch):
    """The time is over as soon as it has answered."""
    monkeypatch.setattr(processes, "_received", clock.forward_after(processes._received))
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400\r\n\r\n"), daemon=True).start()
        with pytest.raises(gm.InvalidInput, match="it answers, but takes no further process"):
            processes._meet(f"localhost:{port}", 2, 1, WAIT)


LIST = json.dumps({"gyromc": gm.__version__, "index": [], "of": 2, "place": ""}).encode() + b"\n"


def test_strangers_do_not_disturb(monkeypatch):
    """A port scanner says nothing, or something else; the run starts all the same."""
    monkeypatch.setattr(processes, "HELLO", 0.2)
    port = free_port()
    first = threading.Thread(target=processes._meet, args=(f"localhost:{port}", 2, 0, WAIT))
    first.start()
    for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"index": 1}\n', LIST, b"\xff" * 10):
        while first.is_alive():
            try:
                stranger = socket.create_connection(("localhost", port))
                break
            except OSError:
                time.sleep(0.01)
        stranger.sendall(greeting)
    processes._meet(f"localhost:{port}", 2, 1, WAIT)
    first.join()


# --- a process that is gone

WATCHED = """
import os, signal, sys, time
from gyromc import processes
index, port, what, who = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
if what == "met" and str(index) == who:
    processes._meet(f"localhost:{port}", 3, index, 200)
    os.kill(os.getpid(), signal.SIGKILL)  # the others wait for it while JAX starts
processes.start(f"localhost:{port}", 3, index, timeout=200, silence=4)
if str(index) == who:
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raises":
        raise ValueError("an error of its own")
    if what == "leaves":
        processes.leave(9)
    sys.exit(0)
if what != "done":
    processes.agree(1)
elif index == 1:
    time.sleep(5)  # the others wait at the end of the program
    client = processes._runtime().client

    class Slow:
        def __getattr__(self, name):
            if name == "key_value_dir_get_bytes":
                time.sleep(1)  # before it asks process 0, which has come to the end as well
            return getattr(client, name)

    processes._runtime().client = Slow()
elif index == 0:
    processes.finish()
    os._exit(0)  # nothing of JAX's own is done at the end
"""
FEW = (("killed", 0), ("done", None))
CASES = (*FEW, ("killed", 1), ("raises", 2), ("ends", 1), ("leaves", 1), ("met", 0), ("met", 1))


@pytest.mark.parametrize("cases", [FEW, pytest.param(CASES, marks=pytest.mark.slow)], ids=["few", "all"])
def test_no_process_waits_for_one_that_is_gone(cases):
    """All cases at once: JAX notices within the silence of four seconds, its start soon after; nobody waits for 200."""
    commands, lost = [], (processes.LOST, -signal.SIGABRT)  # whether gyromc or JAX notices first
    for case, who in cases:
        port = str(free_port())
        commands += [[sys.executable, "-c", WATCHED, str(i), port, case, str(who)] for i in range(3)]
    found = ended(started(commands), 100)
    for number, (case, who) in enumerate(cases):
        three = found[3 * number : 3 * number + 3]
        own = {
            "killed": (-signal.SIGKILL,),
            "met": (-signal.SIGKILL,),
            "raises": (1,),
            "leaves": (9,),
            "ends": (0, *lost),
        }
        for i, process in enumerate(three):
            expected = (0,) if who is None else own[case] if i == who else lost
            assert process.status in expected, (case, i, process)
            assert process.status != processes.LOST or f"gyromc: process {i} ends, because" in process.err
        assert case != "raises" or "ValueError: an error of its own" in three[2].err
