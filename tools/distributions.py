"""Which installed packages belong to gyromc and to each of its extras, with their versions and sizes.

Input: pyproject.toml and the environment that runs this. Output: packages by extra, each with what it needs in turn.
"""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def declared() -> dict[str, list[Requirement]]:
    """The requirements of the core, under the name "", and of each extra; an extra of gyromc in an extra is resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}

    def flat(name: str) -> list[Requirement]:
        found = []
        for one in map(Requirement, extras[name]):
            found += [inner for extra in sorted(one.extras) for inner in flat(extra)] if one.name == "gyromc" else [one]
        return found

    return {name: flat(name) for name in extras}


def closure(requirements: list[Requirement]) -> set[str]:
    """The names of the packages, and of all that they need here; raises where one is not installed."""
    found: set[str] = set()
    waiting = [(one, "") for one in requirements]
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(one.name)
        new = name not in found
        found.add(name)
        if new or one.extras:
            needed = [Requirement(text) for text in metadata.requires(name) or []]
            waiting += [(inner, own) for inner in needed for own in (one.extras or {""})]
    return found


def megabytes(names: set[str]) -> float:
    """The size of the packages' installed files, compiled ones included."""
    files = [file.locate() for name in names for file in metadata.files(name) or []]
    return sum(Path(str(file)).stat().st_size for file in files if Path(str(file)).is_file()) / 1e6
