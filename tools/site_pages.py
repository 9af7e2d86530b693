"""Pages of the site that are written from the code and from stored results: the commands, and what was measured where.

`commands_page()` returns Markdown with the arguments and options of every command; `measured_page(docs)` a table of the files in
docs/measured with the page that shows each, the command that makes it, and the machine that it names, or "machine not recorded".
"""

import json
import re
from pathlib import Path
from typing import Any

import typer

from gyromc.app.cli import app
from gyromc.checks import require
from gyromc.targets.families import FAMILIES

__all__ = ["MEASURED", "MOVED", "commands_page", "equation_cards", "measured_page"]

MEASURED = {
    "measured/accuracy.json": (
        "accuracy.md",
        "What the rotation alone gains",
        "gyromc bench accuracy --out docs/measured",
    ),
    "measured/race.json": (
        "accuracy.md",
        "The race in seconds",
        "gyromc bench accuracy --race --out docs/measured",
    ),
    "measured/posteriors.json": (
        "accuracy.md",
        "Exact answers of the race in seconds",
        "python -m accuracy.make_references",
    ),
    "measured/draws-per-gradient.json": (
        "schemes.md",
        "Schemes and control variates",
        "python benchmarks/draws_per_gradient.py",
    ),
    "measured/coverage.json": (
        "intervals.md",
        "Coverage of intervals",
        "python benchmarks/interval_coverage.py",
    ),
    "measured/real-files.json": ("checked.md", "`gyromc fit` on real files", "python benchmarks/real_files.py"),
    "measured/simulated-data.json": (
        "checked.md",
        "`gyromc fit` on simulated data",
        "python benchmarks/simulated_data.py",
    ),
    "reproduction/results.json": (
        "reproduction.md",
        "The paper's twelve experiments",
        "gyromc reproduce --profile paper",
    ),
    "measured/cpu-2-cores.json": ("engines.md", "Speed of the engines", "gyromc bench speed"),
    "measured/gpu-h200.json": ("engines.md", "Speed on a GPU", "python benchmarks/gpu.py"),
    "measured/float32-cpu.json": ("engines.md", "Rounding in float32", "python benchmarks/float32.py"),
    "measured/faults.json": ("scale.md", "Kills, damaged files, full disks", "python benchmarks/faults.py"),
    "measured/checkpoints.json": ("scale.md", "What checkpoints cost", "python benchmarks/checkpoints.py"),
    "measured/blocks.json": ("scale.md", "Chains in blocks", "python benchmarks/blocks.py"),
    "measured/memory.json": ("scale.md", "Memory of runs", "python benchmarks/memory.py"),
    "measured/scaling.json": ("scale.md", "Chains and data over devices", "python benchmarks/scaling.py"),
    "measured/scaling-gpu.json": ("scale.md", "Steps on one GPU", "python benchmarks/scaling.py --here"),
    "measured/large-data.json": ("large_data.md", "20 million rows", "python benchmarks/large_data.py means"),
    "measured/large-data-speed.json": (
        "large_data.md",
        "Mini-batches from a mapped file",
        "python benchmarks/large_data.py speed",
    ),
    "measured/large-data-feed.json": ("large_data.md", "Rows for a GPU", "python benchmarks/large_data.py feed"),
    "measured/digits.json": ("networks.md", "Noisy digits", "python examples/digits.py"),
    "measured/digits-tuned.json": ("networks.md", "Noisy digits, tuned", "python examples/digits.py"),
    "measured/digits-first.json": ("networks.md", "Noisy digits, an earlier setting", "python examples/digits.py"),
    "measured/digits-clean.json": ("networks.md", "Clean digits", "python examples/digits.py"),
    "measured/rotation.json": (
        "concepts/rotation.md",
        "Where rotation pays",
        "python benchmarks/rotation_pays.py",
    ),
    "measured/promises.json": ("tuning.md", "Errors of tuned plans", "python benchmarks/promises.py"),
}
"""By file in docs/: the page that shows it, what it is about, the command that makes it. Missing files are left out."""

MOVED = {
    "guide.html": "tutorials/start-here.html",
    "distributed.html": "scale.html#several-processes",
    "tutorials/index.html": "tutorials/start-here.html",
    "tutorials/own-numpyro-model.html": "numpyro.html",
    "tutorials/large-data.html": "large_data.html",
    "tutorials/network.html": "networks.html",
    "moving/from-blackjax.html": "blackjax.html",
    "concepts/index.html": "concepts/rotation.html",
    "concepts/reversibility.html": "concepts/rotation.html",
    "concepts/fluctuation-constant.html": "concepts/rotation.html#the-fluctuation-constant-vh",
    "concepts/when-rotation-does-not-help.html": "concepts/rotation.html#when-rotation-does-not-help",
    "concepts/bias-and-variance.html": "schemes.html#bias-against-variance",
    "concepts/balanced-noise.html": "schemes.html#balanced-noise",
    "concepts/martingale.html": "schemes.html#the-martingale-control-variate",
    "concepts/step-size.html": "schemes.html#bias-against-variance",
    "moving/from-nuts.html": "numpyro.html",
    "moving/from-r.html": "formulas.html#coming-from-r",
    "tutorials/error-bars.html": "intervals.html",
    "tutorials/paper.html": "reproduction.html#one-experiment-in-ten-lines",
    "scaling.html": "scale.html#measured",
    "reference/running.html": "reference/index.html",
    "howto/index.html": "index.html",
    "howto/save-and-resume.html": "scale.html",
    "howto/choose-an-engine.html": "engines.html",
    "howto/read-a-warning.html": "warnings.html",
    **{
        f"reference/{name}.html": f"reference/pieces.html#gyromc.{name}"
        for name in ("targets", "dynamics", "observables", "oracles", "schemes")
    },
    **{
        f"reference/{name}.html": f"reference/interfaces.html#gyromc.{name}"
        for name in ("data", "datasets", "errors", "sklearn")
    },
    **{
        f"reference/{name}.html": f"reference/interfaces.html#gyromc.interop.{name}"
        for name in ("numpyro", "pymc", "blackjax", "arviz")
    },
}
"""By address of a page that was merged into another: where its subject is now."""

MACHINE = ("processor", "cores", "threads", "device")
VERSIONS = ("gyromc", "jax")
NOT_RECORDED = "machine not recorded"
KINDS = ("x86_64", "aarch64", "arm64")  # kinds of processors: they name no machine


def measured_page(docs: Path) -> str:
    """Markdown: a row for every file of stored results, with the machine and versions that the file itself names."""
    there = {path.relative_to(docs).as_posix() for path in docs.glob("measured/*.json")}
    unknown = sorted(there - set(MEASURED))
    require(not unknown, f"tools/site_pages.py must say what {', '.join(unknown)} is. Add it to MEASURED.")
    lines = [
        "# What was measured, and where",
        "",
        "A command of the project wrote each of these files. The pages explain how a number is measured, what it means, and "
        "which options the command had. Figures per second depend on the machine.",
        "",
        "| what | page | numbers | command | machine and versions |",
        "|---|---|---|---|---|",
    ]
    for name, (page, about, command) in MEASURED.items():
        if not (docs / name).exists():
            continue
        machine = described(json.loads((docs / name).read_text(encoding="utf-8")))
        files = f"[{Path(name).name}](../{name})"
        lines.append(
            f"| {about} | [{Path(page).stem.replace('_', ' ')}](../{page}) | {files} | `{command}` | {machine} |"
        )
    return "\n".join(lines) + "\n"


def described(found: Any) -> str:
    """The machine and the versions that a file of results names, as text; those of earlier parts of it after a semicolon."""
    if not isinstance(found, dict):
        return NOT_RECORDED
    texts = [_environment({**found, **(found.get("environment") or {})})]
    texts += [f"parts of it earlier: {_environment(other or {})}" for other in found.get("other_environments", [])]
    return "; ".join(texts)


EQUATION = re.compile(r"^\| ([ET]\d+) \| (.*?) \| (.*?) \| (.*) \|$")


def equation_cards(page: str) -> str:
    """The page of equations with a card for each row of its table: a table of formulas does not fit on a phone."""
    lines = []
    for line in page.splitlines():
        match = EQUATION.match(line)
        if match:
            number, formula, about, where = match.groups()
            shown = f"$${formula[1:-1]}$$" if formula.startswith("$") else formula
            lines += [
                f'<div class="equation" id="{number.lower()}" markdown>',
                "",
                f"**{number}** · {about}",
                "",
                shown,
                "",
            ]
            lines += [
                "<details markdown><summary>where in the code</summary>",
                "",
                where,
                "",
                "</details>",
                "</div>",
                "",
            ]
        elif not line.startswith(("| number", "|---")):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _environment(named: dict[str, Any]) -> str:
    """One machine and its versions as text. A number of cores or a version alone does not say which machine it was."""
    parts = {key: f"{key} {named[key]}" for key in (*MACHINE, *VERSIONS) if isinstance(named.get(key), str | int)}
    known = named.get("processor", KINDS[0]) not in KINDS or named.get("device", "cpu") != "cpu"
    return ", ".join([*([] if known else [NOT_RECORDED]), *parts.values()]).replace("(R)", "")


def commands_page() -> str:
    """Markdown: what every command does, its arguments and options, and its examples."""
    group: Any = typer.main.get_command(app)
    shown = {name: one for name, one in group.commands.items() if not one.hidden}
    lines = [
        "# The command line",
        "",
        f"{_first_sentence(group.help)}. Data go to standard output, everything else to standard error. "
        "`gyromc COMMAND --help` shows the same on a terminal. This page is written from the commands themselves.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`gyromc {name}`](#{name}) | {_first_sentence(one.help)} |" for name, one in shown.items()),
        "",
    ]
    for name, command in shown.items():
        lines += _command(name, command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> list[str]:
    """The section of one command."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join(["gyromc", name, *(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"## `gyromc {name}` {{ #{name} }}", "", command.help, "", "```text", usage, "```", ""]
    if arguments:
        lines += ["| argument | what it is |", "|---|---|"]
        lines += [f"| `{_argument(one)}` | {_cell(one.help)} |" for one in arguments] + [""]
    if options:
        lines += ["| option | what it does | default |", "|---|---|---|"]
        lines += [f"| {_names(one)} | {_cell(one.help)} | {_default(one)} |" for one in options] + [""]
    return lines + _last_part(command.epilog or "")


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    name = f"{name}…" if one.nargs == -1 else name
    return name if one.required else f"[{name}]"


def _names(one: Any) -> str:
    """All spellings of an option, with the name of its value."""
    value = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
    return ", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in [*one.opts, *one.secondary_opts])


def _default(one: Any) -> str:
    if one.is_flag and one.secondary_opts:
        return f"`{one.opts[0] if one.default else one.secondary_opts[0]}`"
    return "" if one.default in (None, False, (), []) or callable(one.default) else f"`{one.default}`"


def _cell(text: str | None) -> str:
    """Help as the cell of a table; the families, which the command line looks up only when asked for help, are listed."""
    return " ".join((text or "").split()).replace("FAMILIES", ", ".join(FAMILIES)).replace("|", "\\|")


def _first_sentence(text: str) -> str:
    return _cell(text.split(". ")[0].rstrip(".").split("\n\n")[0])


def _last_part(epilog: str) -> list[str]:
    """The last part of a help text: what is said before the examples as text, and these as a block of commands."""
    said, _, examples = re.split(r"(Examples?:)", epilog, maxsplit=1) if "Example" in epilog else (epilog, "", "")
    commands = [one.strip() for line in examples.split("\n") for one in re.split(r"; (?=gyromc )", line) if one.strip()]
    block = ["```sh", *commands, "```", ""] if commands else []
    return ([said.strip(), ""] if said.strip() else []) + block
