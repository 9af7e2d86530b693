"""Write the table of rotations in docs/accuracy.md from what `gyromc bench accuracy --out docs/measured` stored.

python benchmarks/accuracy_pages.py [--cells docs/measured/accuracy.json] [--docs docs]
"""

import argparse
from pathlib import Path

from accuracy.measure import read
from accuracy.report import write_pages
from gyromc.checks import require

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, default=ROOT / "docs" / "measured" / "accuracy.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    asked = parser.parse_args()
    require(
        asked.cells.exists(),
        f"There is no {asked.cells}. Run `gyromc bench accuracy --out {asked.cells.parent}` first.",
    )
    write_pages(read(asked.cells), asked.docs)


if __name__ == "__main__":
    main()
