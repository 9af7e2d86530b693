"""The table of the tuned sampler in docs/networks.md, from what was measured.

    python examples/digits.py --out results/by-hand && python examples/digits.py --tuned --out results/tuned
    cp results/tuned/digits.json docs/measured/digits-tuned.json && python benchmarks/digits_page.py

Input: the JSON of `examples/digits.py` with and without `--tuned`. Output: the text between two markers of the page.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from gyromc.checks import require
from pages import markdown, replace_between

ROOT = Path(__file__).parents[1]
SCORES = {
    "brier": "Brier score",
    "log_score": "log score",
    "accuracy": "accuracy",
    "calibration_error": "calibration error",
    "unseen_auroc": "8 and 9 told apart by entropy (AUROC)",
}


def read(path: Path, command: str) -> dict:
    """The JSON; `InvalidInput` with the command that makes it where it is missing."""
    require(path.exists(), f"{path} is missing: make it with `{command}`.")
    return json.loads(path.read_text())


def shown(value: dict) -> str:
    """Mean ± standard error over splits."""
    error = value["std_error"]
    return f"{value['mean']:.3f}".replace("-", "−") + ("" if error is None else f" ± {error:.3f}")


def worst(result: dict, name: str) -> str:
    """The median over splits of the largest standard error or R-hat of an observable; – where it was not stored."""
    rows = [list(split["observables"].values()) for split in result["splits"]]
    if not all(name in observable for row in rows for observable in row):
        return "–"
    return f"{np.median([max(observable[name] for observable in row) for row in rows]):.3g}"


def table(by_hand: dict, tuned: dict) -> str:
    """Scores of both samplers and of the point estimates, and how well the averages are known."""
    columns = ["score", "Bayes, `gm.tune`", "Bayes, by hand", "mode", "tuned point estimate", "ensemble of 5"]
    rows = []
    for key, name in SCORES.items():
        others = [shown(tuned["summary"][key][who]) for who in ("mode", "point", "ensemble")]
        rows.append([name, shown(tuned["summary"][key]["bayes"]), shown(by_hand["summary"][key]["bayes"]), *others])
    for key, name in (("std_error", "largest standard error of an observable"), ("r_hat", "largest R-hat")):
        rows.append([f"{name}, median over splits", worst(tuned, key), worst(by_hand, key), "", "", ""])
    oracles = sorted({split["plan"]["oracle"] for split in tuned["splits"]})
    splits = f"{len(tuned['splits'])} splits with `gm.tune`, {len(by_hand['splits'])} by hand"
    return f"{markdown(columns, rows)}\n\n{splits}; gradients that `gm.tune` took: {', '.join(oracles)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measured = ROOT / "docs" / "measured"
    parser.add_argument("--tuned", type=Path, default=measured / "digits-tuned.json")
    parser.add_argument("--by-hand", type=Path, default=measured / "digits.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "networks.md")
    options = parser.parse_args()
    tuned = read(options.tuned, "python examples/digits.py --tuned")
    replace_between(options.page, "digits tuned", table(read(options.by_hand, "python examples/digits.py"), tuned))


if __name__ == "__main__":
    main()
