"""A test of an installed gyromc, run by `tools/dist_test.py` outside the checkout: standard library and gyromc only.

    python smoke.py core    # nothing but the core is installed
    python smoke.py all     # with every extra

Output: one line for each check; the first that fails raises.
"""

import csv
import hashlib
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from importlib import metadata, resources
from pathlib import Path

PLAN = """
step_size = 0.1
num_chains = 20

[target]
kind = "quadratic"
precision = [1.0, 2.0]

[dynamics]
kind = "overdamped"
dim = 2

[observables.x]
kind = "linear"
u = [1.0, 0.0]
"""


def command(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """Run the installed command; raise unless it ends with that code."""
    done = subprocess.run([str(Path(sys.executable).with_name("gyromc")), *arguments], capture_output=True, text=True)
    assert done.returncode == code, f"gyromc {' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
    return done


def installed() -> str:
    """The package is the installed one, its version that of its metadata, and its files are in it."""
    import gyromc
    from gyromc.datasets import HEART

    where = Path(gyromc.__file__)
    assert "site-packages" in where.parts, f"not the installed package: {where}"
    assert gyromc.__version__ == metadata.version("gyromc")
    data = (resources.files("gyromc.datasets") / "statlog_heart.csv").read_bytes()
    assert hashlib.sha256(data).hexdigest() == HEART.sha256
    names = ("py.typed", "show/templates/page.html.j2", "tables/templates/fit.html.j2", "explore/style.css")
    for name in names:
        assert (where.parent / name).is_file(), f"{name} is missing"
    top = {str(file).split("/")[0] for file in metadata.files("gyromc") or []}
    assert not top & {"tests", "docs", "benchmarks", "tools", "examples"}, top
    return f"gyromc {gyromc.__version__}, Python {sys.version.split()[0]}"


def library() -> str:
    """A plan is predicted and run, and the two agree."""
    import gyromc as gm

    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        step_size=0.1,
        num_chains=500,
    )
    predicted, run = gm.predict(plan), gm.run(plan)
    z = (run.mean["x"] - predicted.mean["x"]) / run.std_error["x"]
    assert abs(z) < 5, z
    return f"run by {run.engine}, {z:+.1f} standard errors from its prediction"


def commands() -> str:
    """The commands that need the core alone."""
    for name in ((), ("fit",), ("explore",), ("predict",)):
        command(*name, "--help")
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(PLAN)
        found = json.loads(command("run", str(plan), "--json").stdout)
    assert found, "run printed nothing"
    return "commands run"


def without_extras() -> str:
    """What is missing is named, with the command that installs it."""
    assert importlib.util.find_spec("pandas") is None, "pandas is installed: this is not the core alone"
    said = command("fit", "a.csv", "--target", "y", code=2).stderr
    assert "pip install 'gyromc[fit]'" in said, said
    return "a missing extra is named"


def fit() -> str:
    """A CSV file becomes coefficients with error bars; the truth lies within five errors and spreads."""
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "sales.csv", Path(folder) / "out"
        with data.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["price", "region", "sold"])
            for _ in range(300):
                price, region = draw.gauss(10, 2), draw.choice(["north", "south"])
                rows.writerow([price, region, 40 - 2 * price + 3 * (region == "south") + draw.gauss(0, 1)])
        command("fit", str(data), "--target", "sold", "--out", str(out))
        found = json.loads((out / "fit.json").read_text())
        (price,) = [row for row in found["coefficients"] if row["name"] == "price"]
        assert abs(price["mean"] + 2) < 5 * price["std"], price
        assert (out / "report.html").stat().st_size > 10_000
    return f"fit of a CSV: price {price['mean']:.2f} ± {price['std']:.2f}, the truth is -2"


if __name__ == "__main__":
    checks = (installed, library, commands, without_extras if sys.argv[1] == "core" else fit)
    for check in checks:
        print(f"  {check.__name__}: {check()}", flush=True)
