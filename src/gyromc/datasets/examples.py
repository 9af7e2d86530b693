"""Tables that come with the package: their files, sources, licences and checksums, and a command that fits each."""

import dataclasses
import hashlib
from importlib import resources
from pathlib import Path

from gyromc.checks import read_path, require
from gyromc.show.numbers import did_you_mean

__all__ = ["EXAMPLES", "HEART", "Example", "located"]

PREFIX = "example:"


@dataclasses.dataclass(frozen=True)
class Example:
    """A table in the package: what its rows are, where it comes from, and the options that fit it."""

    file: str
    rows: int
    about: str
    options: str
    source: str
    licence: str
    sha256: str

    @property
    def citation(self) -> str:
        """The attribution that the licence asks for."""
        return f"{self.source}, {self.licence}"

    @property
    def path(self) -> Path:
        """The file, after its checksum was compared.

        ```python
        import gyromc as gm
        print(gm.datasets.EXAMPLES["penguins"].path.read_text().splitlines()[0])
        ```
        """
        path = Path(str(resources.files("gyromc.datasets").joinpath(self.file)))
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        require(
            found == self.sha256,
            f"{path} is damaged: SHA-256 is {found}, expected {self.sha256}. Reinstall the package.",
        )
        return path


EXAMPLES = {
    "heart": Example(
        file="statlog_heart.csv",
        rows=270,
        about="heart disease of patients, yes or no",
        options="--target disease",
        source="Statlog (Heart), UCI Machine Learning Repository, doi:10.24432/C57303",
        licence="CC BY 4.0",
        sha256="e70ec53e0327b6d56e1285ece947bfba67416c2c16e0b7b89d174853785c2be7",
    ),
    "penguins": Example(
        file="penguins.csv",
        rows=333,
        about="body mass of penguins, three species on three islands: groups",
        options='--formula "body_mass ~ flipper_length + sex + (1 | species)"',
        source="Gorman, Williams & Fraser (2014), Palmer Station LTER, doi:10.1371/journal.pone.0090081; complete rows",
        licence="CC0 1.0",
        sha256="2f48d38a8e62b4f67f1486fe36a2604b3ae6bdbe53a8d85bd9846eb3e3a94027",
    ),
    "kicks": Example(
        file="horse_kicks.csv",
        rows=280,
        about="deaths by horse kick in 14 Prussian army corps, 1875 to 1894: counts",
        options="--target deaths --family poisson",
        source="L. von Bortkiewicz, Das Gesetz der kleinen Zahlen (1898)",
        licence="public domain",
        sha256="ed730b2f0d693d15aa4484d366f2d8c691e3611257bffd787b43452dd38a2e5b",
    ),
    "visits": Example(
        file="doctor_visits.csv.gz",
        rows=20190,
        about="visits to a doctor in the RAND Health Insurance Experiment: counts, large",
        options="--target visits --family poisson",
        source="RAND Health Insurance Experiment, as in Cameron & Trivedi, Microeconometrics (2005)",
        licence="public domain",
        sha256="b6a60fc65080c7421d83c72eea07309a9a7ff854632ee60cefc3e2aaad8e7be5",
    ),
}
"""By name: the tables of the package."""
HEART = EXAMPLES["heart"]


def located(data: str | Path) -> Path:
    """Return the path of a file of data; `example:NAME` is a file of the package.

    ```python
    from gyromc.datasets import located
    print(located("example:heart").name)
    ```
    """
    path = read_path(data)
    if not str(path).startswith(PREFIX):
        return path
    name = str(path).removeprefix(PREFIX)
    require(name in EXAMPLES, f"There is no example {name!r}. {did_you_mean(name, list(EXAMPLES), 'There are:')}")
    return EXAMPLES[name].path
