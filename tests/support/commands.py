"""The command line: in this process, or in one of its own that hears Ctrl-C.

A test that is not about processes uses the first: starting JAX takes seconds.
"""

import contextlib
import io
import sys
import warnings
from typing import NamedTuple

from gyromc.app.cli import command_line

_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a suite under nohup ignores
    "from gyromc.app.cli import main; main()"
)


class Done(NamedTuple):
    """The result of a command, named as in `subprocess`."""

    returncode: int
    stdout: str
    stderr: str


def gyromc(*arguments, cwd=None) -> Done:
    """`python -m gyromc` with these arguments; warnings are shown, as in a process of its own."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(contextlib.chdir(cwd or "."))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        stack.callback(setattr, sys, "argv", before)
        sys.argv = ["gyromc", *map(str, arguments)]
        try:
            command_line()
        except SystemExit as stopped:
            code = stopped.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def refused(*arguments, cwd=None) -> str:
    """What a command says that cannot work: it ends with status 2, prints nothing else and shows no traceback."""
    done = gyromc(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


def interruptible_command(*arguments):
    """The arguments of a process that runs `gyromc` and can be interrupted by Ctrl-C, wherever the tests run."""
    return [sys.executable, "-c", _CODE, *map(str, arguments)]
