"""The parts of gyromc in one total order, lowest first: a module imports only from its own part and from lower ones.

`tests/test_architecture.py` enforces the order, and CONTRIBUTING.md shows it; `python tests/support/layers.py --write` rewrites
the table there.
"""

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- the table of parts: written by tests/support/layers.py -->"
END = "<!-- end of the table of parts -->"


class Part(NamedTuple):
    """A module or a package of gyromc, what it holds in one line, and the equations it implements."""

    name: str
    holds: str
    equations: str = ""

    @property
    def path(self) -> str:
        """As it appears in the source folder."""
        return f"{self.name}/" if (ROOT / "src" / "gyromc" / self.name).is_dir() else f"{self.name}.py"


LAYERS = [
    Part("errors", "the exceptions and warnings"),
    Part("extras", "packages that only an extra installs, and functions of higher parts, imported when used"),
    Part("checks", "reading and validating arguments"),
    Part("show", "numbers as text, tables, results by name, progress, Ctrl-C, files, HTML pages"),
    Part("runtime", "memory, threads, the compilation cache; both precisions; functions of many rows"),
    Part("processes", "several processes that compute one run: start, count, agreement, gathered arrays"),
    Part("data", "rows of data on disk: CSV, mapped files, Parquet, batches; passes over them"),
    Part("operators", "linear maps that keep their structure instead of a matrix"),
    Part("rotations", "rotations Q that are best in a stated sense", "T4"),
    Part("dynamics", "samplers as values (D, Q)", "E1, E5"),
    Part("targets", "U(θ): densities, separable potentials, regressions"),
    Part("observables", "h(θ): ridge functions ρ(aᵀθ) by name, and any function"),
    Part("oracles", "unbiased gradients ĝ, their randomness drawn apart from its use"),
    Part("coordinates", "bijections θ = T(z) that a plan's chains move in", "T14"),
    Part("flat", "any pytree of parameters as one vector; where chains start"),
    Part("fields", "zero-mean functions, and the regression of observables on them", "T11"),
    Part("approx", "modes of a target, Gaussian approximations, weighted samples and whether they represent it"),
    Part("model", "a target over one vector, with what can be learnt of it before any dynamics"),
    Part(
        "schemes",
        "one step of a chain: Euler, balanced noise, second order; moments of noisy gradients",
        "E3, T5, T7",
    ),
    Part("plan", "the plan: the pieces plus the numbers, checked against each other"),
    Part("prediction", "what a plan will deliver, and its martingales; never imports an engine", "E6–E11, T1–T3, T9"),
    Part("statistics", "the error of a mean over chains: replicates, batch means, R-hat, intervals", "T3"),
    Part("posterior", "the `Posterior`: means with errors, standard deviations, weighted draws, warnings"),
    Part("solve", "`expect`: warm up, sample, regress; `check` and `sharpen` for anybody's draws", "T12, T13"),
    Part("results", "the `Run`: the averages of all chains and what they came from"),
    Part("io", "files: one codec for archives, checkpoints, saved runs and models; plan files; functions by name"),
    Part("engines", "`run`: the loop, and the engines `scan` (any target), `lanes` (CPU), `pallas` (GPU)", "E4"),
    Part("estimation", "`estimate`: the statistical error of a mean, and the bias of the step size"),
    Part("tuning", "the choice of dynamics, step size and run length, by trials against the solver's answer"),
    Part("datasets", "data with checksum and licence"),
    Part("regression", "Bayesian regression from X and y"),
    Part("tables", "`fit`: regressions of tables by a formula: encoding, checks of the model, report"),
    Part("interop", "BlackJAX, NumPyro, PyMC, ArviZ; each is imported only when used"),
    Part("sklearn", "Bayesian regressions as scikit-learn estimators"),
    Part("paper", "the twelve experiments as values; worker processes, cache, claims, figures, report"),
    Part("explore", "the page of `gyromc explore`: its files, its data, its server"),
    Part("app", "the command line: no mathematics"),
    Part("__main__", "`python -m gyromc`"),
]


def table() -> str:
    rows = [f"| `{part.path}` | {part.holds} | {part.equations} |" for part in LAYERS]
    return "\n".join(["| part | what it holds | equations |", "|---|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table between its two markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/support/layers.py --write")
    PAGE.write_text(with_table(PAGE.read_text()))
