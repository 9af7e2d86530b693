"""Folders that are costly to fill, made once for all processes of one test session."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def made_once(tmp_path_factory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder `name` of this session, filled by `build` in whichever process asks first; nobody may write to it later."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own in here
    folder, ready = base / name, base / f"{name}.ready"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            folder.mkdir(exist_ok=True)
            build(folder)
            ready.touch()
    return folder
