"""The server answers browsers on this machine for the files it knows, and nobody else; the copy is one file."""

import http.client
import signal
import subprocess
import threading
import urllib.request

import pytest

from gyromc import InvalidInput
from gyromc.app.cli import PORT
from gyromc.explore.server import FOLDER, PageServer, copy_in_one_file, files
from support.commands import gyromc, interruptible_command

LIMIT = 120  # seconds; only reached where no answer comes


@pytest.fixture(scope="module")
def server():
    with PageServer(0) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server, path, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    reply = connection.getresponse()
    return reply, reply.read()


def test_every_file_of_the_page_is_sent_as_it_is(server):
    for path, file in files().items():
        reply, body = ask(server, path)
        assert reply.status == 200
        assert body == file.read_bytes()
    assert ask(server, "/")[1] == (FOLDER / "index.html").read_bytes()


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    ["/server.py", "/js/", "/js/../server.py", "/%2e%2e/app/cli.py", "//etc/passwd", "/js/main.mjs/", "/nothing"],
)
def test_other_paths_are_not_found(server, path):
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org", ""])
def test_another_host_is_refused(server, host):
    reply, body = ask(server, "/", host=host)
    assert reply.status == 403
    assert b"127.0.0.1" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server, method):
    assert ask(server, "/", method)[0].status == 501


def test_head_sends_no_body_and_headers_forbid_everything_foreign(server):
    reply, body = ask(server, "/", "HEAD")
    assert (reply.status, body) == (200, b"")
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "Python" not in reply.headers["Server"]


def test_a_port_in_use_and_a_port_that_is_none_are_said(server):
    with pytest.raises(InvalidInput, match="Pass another `--port`"):
        PageServer(server.server_port)
    with pytest.raises(InvalidInput, match="port"):
        PageServer(70000)


def test_the_copy_is_one_file_that_asks_for_nothing(tmp_path):
    text = copy_in_one_file()
    for forbidden in (" src=", '<link rel="stylesheet"', "import ", "export ", "http://127", "https://"):
        assert forbidden not in text.replace("http://www.w3.org/2000/svg", "")
    done = gyromc("explore", "--out", str(tmp_path / "site"))
    assert (tmp_path / "site" / "index.html").read_text() == text
    assert done.stdout.strip() == str(tmp_path / "site" / "index.html")


def test_help_has_examples_and_the_default_port():
    done = gyromc("explore", "--help")
    assert "Examples" in done.stdout
    assert str(PORT) in done.stdout


def test_the_command_prints_its_address_and_ends_at_ctrl_c():
    command = interruptible_command("explore", "--port", "0", "--no-browser")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with urllib.request.urlopen(process.stdout.readline().strip(), timeout=LIMIT) as reply:
            assert reply.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("path", sorted((FOLDER / "js").glob("*.mjs")), ids=lambda p: p.name)
def test_modules_are_small_and_documented(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 130
