"""The table of docs/install.md: what each extra is for, and how large it is besides the core, in this environment.

    python tools/sizes.py --page docs/install.md

It reads the files of the packages installed here: run it where `gyromc[all]` is (`make sizes`).
"""

import argparse
from pathlib import Path

from distributions import closure, declared, megabytes

BEGIN, END = "<!-- sizes: begin, written by tools/sizes.py -->", "<!-- sizes: end -->"
ABOUT = {
    "": "plans, `predict`, `run`, `estimate`, `tune`, `expect`, regressions from arrays, `gyromc explore`, plan files",
    "fast": "engine `lanes` (Numba), the fast one on a CPU",
    "plots": "Matplotlib, for figures of your own",
    "report": "`gyromc reproduce`, `gyromc report`, `gyromc tune --html`",
    "fit": "`gyromc fit` and `gyromc apply`: files, formulas, the report",
    "excel": "Excel files in `gyromc fit`",
    "data": "`gyromc.data` over Parquet files",
    "sklearn": "`gyromc.sklearn`, the scikit-learn estimators",
    "numpyro": "`gyromc.interop.numpyro`",
    "pymc": "`gyromc.interop.pymc`; not in `all`",
    "blackjax": "`gyromc.interop.blackjax`",
    "arviz": "`run.to_datatree()`",
    "all": "everything above",
}


APART = {"pymc": 451}  # MB, measured in an environment of its own: it needs other versions than the other extras


def table() -> str:
    """The rows of the page."""
    needs, core = declared(), closure(declared()[""])
    rows = [f"| the core | {ABOUT['']} | {megabytes(core):.0f} |"]
    for extra, about in list(ABOUT.items())[1:]:
        size = APART[extra] if extra in APART else megabytes(closure(needs[extra]) - core)
        rows.append(f"| `{extra}` | {about} | + {size:.0f} |")
    return "\n".join(["| extra | what needs it | MB |", "|---|---|---:|", *rows])


def largest(count: int = 6) -> str:
    """The packages of the core, by size."""
    sizes = {name: megabytes({name}) for name in closure(declared()[""])}
    most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:count]
    return ", ".join(f"{name} {sizes[name]:.0f}" for name in most)


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    page = parser.parse_args().page
    text = f"{table()}\n\nThe largest packages of the core, in MB: {largest()}."
    if page is None:
        print(text)
        return
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
