"""The command line in a process of its own."""

import sys

_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a suite under nohup ignores
    "from gyromc.app.cli import main; main()"
)


def interruptible_command(*arguments):
    """The arguments of a process that runs `gyromc` and can be interrupted by Ctrl-C, wherever the tests run."""
    return [sys.executable, "-c", _CODE, *map(str, arguments)]
