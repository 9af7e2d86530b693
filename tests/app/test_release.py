"""What a release consists of agrees: versions, extras, the page of the installation, the workflow."""

import re
import tomllib

import gyromc
from gyromc.extras import EXTRAS
from support.values import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ["3.11", "3.12", "3.13"]


def text(name):
    return (ROOT / name).read_text()


def test_version_and_date_are_the_same_everywhere():
    version, date = re.search(r"^## (\S+) \((\S+)\)", text("CHANGELOG.md"), re.MULTILINE).groups()
    assert version == gyromc.__version__
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert f'\ndate-released: "{date}"\n' in text("CITATION.cff")


def test_the_supported_pythons_are_the_same_everywhere():
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["project"]["classifiers"] if ":: 3." in line]
    assert named == PYTHONS
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    assert f"python: {PYTHONS}".replace("'", '"') in text(".github/workflows/ci.yml")
    assert f"VERSIONS = {tuple(PYTHONS)}".replace("'", '"') in text("tools/dist_test.py")


def test_the_page_of_the_installation_has_every_extra_with_its_size():
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| \+ (\d+) \|$", text("docs/install.md"), re.MULTILINE))
    assert set(rows) == {*EXTRAS, "all"}
    assert int(rows["all"]) >= max(map(int, rows.values()))


def test_the_workflow_calls_targets_that_exist():
    asked = set(re.findall(r"run: make ([\w-]+)", text(".github/workflows/ci.yml")))
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    assert asked == {"lint", "test", "docs", "dist-test"}
    assert asked <= targets
    assert not re.findall(r"uses: \S+@(?!v\d+\.\d+\.\d+)\S+", text(".github/workflows/ci.yml"))


def test_constraints_name_versions_and_no_addresses():
    for path in sorted((ROOT / "constraints").glob("*.txt")):
        lines = path.read_text().splitlines()
        assert lines[0].endswith(f"on Python {path.stem.removeprefix('python')}; written by `make lock`.")
        assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines[1:])
