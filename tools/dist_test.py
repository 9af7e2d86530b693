"""Install what `make dist` built into new environments and test it there, outside the checkout, on every Python found.

    python tools/dist_test.py                 # wheel and sdist, Python 3.11, 3.12 and 3.13 as far as they are installed
    python tools/dist_test.py --lock          # write constraints/python3.X.txt from the environments that were tested

Input: dist/. Output: the environments in build/dist-test/, one line for each check, status 1 where one fails. With `--strict`
a Python that is not installed is a failure too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "dist-test"
VERSIONS = ("3.11", "3.12", "3.13")
MOST_MEGABYTES = 5  # of either file
IN_SDIST = {
    "src",
    "tests",
    "examples",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "pyproject.toml",
    "PKG-INFO",
}
IN_SDIST |= {".gitignore"}  # hatchling adds it


def interpreter(version: str) -> str | None:
    """The path of a Python of this version, or None: on the path, or one of pyenv's."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True)
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def built(pattern: str) -> Path:
    """The one file of dist/ that matches."""
    found = sorted((ROOT / "dist").glob(pattern))
    if len(found) != 1:
        sys.exit(f"dist/ must hold one file {pattern}: got {[path.name for path in found]}. Run `make dist`.")
    return found[0]


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raise unless the sdist holds what it must and nothing else, and both are small."""
    with tarfile.open(sdist) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    top = {name.split("/")[0] for name in names}
    assert top == IN_SDIST, f"the sdist holds {sorted(top ^ IN_SDIST)} too much or too little"
    for path in (wheel, sdist):
        size = path.stat().st_size / 1e6
        assert size < MOST_MEGABYTES, f"{path.name} has {size:.1f} MB"
        print(f"{path.name}: {size:.1f} MB")


def pip(python: Path, *arguments: str) -> None:
    """Run pip quietly in an environment."""
    quiet = ["--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([str(python), "-m", "pip", "install", *quiet, *arguments], check=True)


def smoke(python: Path, kind: str) -> None:
    """Run the smoke test from an empty folder, without the checkout on any path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as folder:
        script = shutil.copy(ROOT / "tools" / "smoke.py", folder)
        subprocess.run([str(python), "-I", script, kind], cwd=folder, env=clean, check=True)


def test(version: str, executable: str, wheel: Path, sdist: Path) -> None:
    """The core from the wheel, the core from the sdist, then every extra."""
    place = PLACE / version
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([executable, "-m", "venv", str(place)], check=True)
    python, pinned = place / "bin" / "python", ROOT / "constraints" / f"python{version}.txt"
    limits = ["--constraint", str(pinned)] if pinned.exists() and not os.environ.get("NEWEST") else []
    for kind, what, options in (
        ("core", str(wheel), limits),
        ("core", str(sdist), ["--force-reinstall", "--no-deps"]),
        ("all", f"{wheel}[all]", limits),
    ):
        print(f"Python {version}, {Path(what).name}:", flush=True)
        pip(python, *options, what)
        smoke(python, kind)


def lock(version: str) -> None:
    """Write the versions in a tested environment as constraints."""
    python = PLACE / version / "bin" / "python"
    if not python.exists():
        print(f"Python {version} was not tested here: constraints/python{version}.txt stays as it is", file=sys.stderr)
        return
    listed = subprocess.run(
        [
            str(python),
            "-m",
            "pip",
            "list",
            "--format=freeze",
            "--disable-pip-version-check",
            "--exclude=gyromc",
            "--exclude=pip",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = sorted(line for line in listed.stdout.splitlines() if not line.startswith("setuptools"))
    head = f"# Versions that gyromc[all] was tested with on Python {version}; written by `make lock`."
    path = ROOT / "constraints" / f"python{version}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([head, *lines, ""]))
    print(f"{path.relative_to(ROOT)}: {len(lines)} packages")


def main() -> None:
    """Test, or lock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--only", choices=VERSIONS, action="append", help="this version of Python alone")
    options = parser.parse_args()
    versions = options.only or VERSIONS
    if options.lock:
        for version in versions:
            lock(version)
        return
    wheel, sdist = built("*.whl"), built("*.tar.gz")
    check_contents(wheel, sdist)
    missing = []
    for version in versions:
        executable = interpreter(version)
        if executable is None:
            missing.append(version)
        else:
            test(version, executable, wheel, sdist)
    if missing:
        print(f"not tested, not installed here: Python {', '.join(missing)}", file=sys.stderr)
    sys.exit(1 if missing and (options.strict or len(missing) == len(versions)) else 0)


if __name__ == "__main__":
    main()
