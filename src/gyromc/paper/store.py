"""results.json: everything a report of the paper's §6 needs, with a versioned schema.

Receives findings; hands them on to `gyromc report`, today's or a later one's.
"""

import json
from pathlib import Path
from typing import Any

import gyromc
from gyromc.errors import InvalidInput
from gyromc.paper.cache import write_atomically

__all__ = ["SCHEMA", "SCHEMA_VERSION", "load", "save"]

SCHEMA = "gyromc.reproduction"
SCHEMA_VERSION = 1
FILE = "results.json"


def save(results: dict[str, Any], directory: Path) -> Path:
    """Write results.json, whole or not at all."""
    path = directory / FILE
    write_atomically(path, json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def load(directory: Path) -> dict[str, Any]:
    """Read results.json; say what to do when it is missing, damaged or of another schema."""
    path = Path(directory) / FILE
    if not path.exists():
        raise InvalidInput(f"There is no {path}. Run `gyromc reproduce --out {directory}` first.")
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} cannot be read ({error}). Run `gyromc reproduce --out {directory}` again: finished pieces are kept."
        ) from error
    found = (results.get("schema"), results.get("schema_version")) if isinstance(results, dict) else (None, None)
    if found != (SCHEMA, SCHEMA_VERSION):
        raise InvalidInput(
            f"{path} has schema {found[0]!r} version {found[1]!r}; this is gyromc {gyromc.__version__}, which reads "
            f"{SCHEMA!r} version {SCHEMA_VERSION}. Use the version that wrote it, or run `gyromc reproduce` again."
        )
    return results
