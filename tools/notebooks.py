"""Execute the notebooks of examples/ and store their outputs, without anything that changes from run to run but the numbers.

    python tools/notebooks.py                       # all, at full size; writes the files
    python tools/notebooks.py examples/analyst.ipynb

Needs nbclient and ipykernel (extra `dev`). `GYROMC_EXAMPLES=small` makes the work small; the tests use `execute` and `clean`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS = 900  # for one cell
NOISE = re.compile(r"\x1b\[[\d;]*m|/\S*/tmp\w{8}/")  # colours, and the folder that `tempfile.mkdtemp` made


def execute(path: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a kernel of its own, with `folder` as its working directory; return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where).execute()
    return clean(json.loads(nbformat.writes(notebook)))


def clean(notebook: dict[str, Any]) -> dict[str, Any]:
    """Remove times, colours, temporary folders and HTML tables; join streams; number the cells that ran."""
    ran = 0
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        cell["source"] = _lines("".join(cell["source"]))
        if cell["cell_type"] != "code":
            continue
        ran += 1
        cell["execution_count"] = ran
        cell["outputs"] = list(_outputs(cell["outputs"], ran))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook["metadata"] = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def _outputs(outputs: list[dict[str, Any]], ran: int):
    """What is printed to standard output, as one text, and the results and pictures."""
    text = "".join(
        "".join(one["text"]) for one in outputs if one["output_type"] == "stream" and one["name"] == "stdout"
    )
    if text.strip():
        yield {"name": "stdout", "output_type": "stream", "text": _plain(text)}
    for one in outputs:
        data = {kind: value for kind, value in one.get("data", {}).items() if kind in ("image/png", "text/plain")}
        said = "".join(data.get("text/plain", "")).strip()
        if not said:
            continue
        if "image/png" not in data:
            data["text/plain"] = _plain(said)
        kept = {"data": data, "metadata": {}, "output_type": one["output_type"]}
        yield kept | ({"execution_count": ran} if one["output_type"] == "execute_result" else {})


def _plain(text: str) -> list[str]:
    return _lines("\n".join(line.rstrip() for line in NOISE.sub("", text).splitlines()))


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def write(notebook: dict[str, Any], path: Path) -> None:
    """Write a notebook as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(EXAMPLES.glob("*.ipynb")):
        write(execute(path, path.parent), path)
        print(path)
