"""Python programs in a process in which some packages cannot be imported, as if they were not installed."""

import subprocess
import sys
import textwrap

BLOCKER = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(blocked, program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program text in a process of its own; `blocked` are the names of the packages that it cannot import."""
    text = BLOCKER.format(blocked=tuple(blocked)) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True)
