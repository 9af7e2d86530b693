"""Command lines and plan files that cannot work: each ends with a sentence and status 2, never with a traceback.

`COMMANDS` and `PLANS` are the table of what is tried. Nothing is computed: what can be known to be wrong is said before the work.
"""

import os
import re

import pytest

from support.commands import gyromc

PIECES = {
    "step_size": "step_size = 0.1",
    "target": 'target = {kind = "quadratic", precision = [1.0, 2.0]}',
    "dynamics": 'dynamics = {kind = "overdamped"}',
    "oracle": 'oracle = {kind = "exact"}',
    "observables": 'observables.x = {kind = "linear", u = [1.0, 0.0]}',
}
GOOD = "\n".join(PIECES.values())
DATA = "x,z,y\n" + "".join(f"{i},{i * i % 7},{(i * 5) % 3}.5\n" for i in range(12))


def plan(**changes):
    """The text of a plan file with some lines changed."""
    return "\n".join({**PIECES, **changes}.values())


def of_data(content='csv = "data.csv"'):
    return plan(target=f'target = {{kind = "linear_regression", {content}}}')


FILES = {
    "plan.toml": GOOD,
    "data.csv": DATA,
    "latin.csv": "x,y\n1,2\né,3\n".encode("latin-1"),
    "latin.toml": 'name = "é"'.encode("latin-1"),
    "header.csv": "x,y\n",
    "secret.csv": "root:x:0:0:hunter2\nhunter2\n",
    "empty.csv": "",
    "results/results.json": "{}",
    "broken/results.json": "{",
    "names/results.json": '{"schema": "gyromc.reproduction", "schema_version": 2, "experiments": {"../../x": {}}}',
    "foreign/results.json": '{"schema": "gyromc.reproduction", "schema_version": 2, "experiments": {"a": {"claims": []}}}',
    "none/results.json": '{"schema": "gyromc.reproduction", "schema_version": 2}',
    "done/fit.json": "{}",
    "file": "",
}

# arguments: a piece of the message
COMMANDS = {
    "predict": "Missing argument",
    "predict nothing.toml": "There is no plan file 'nothing.toml'",
    "predict nld-quadratc": "Did you mean 'nld-quadratic'",
    "predict .": "neither a plan file",
    "predict /dev/null": "neither a plan file",
    "predict data.csv": "not valid TOML",
    "predict latin.toml": "plan file 'latin.toml' is not UTF-8",
    "predict plan.toml --step-size nan": "`step_size` must be positive and finite: got nan",
    "predict plan.toml --step-size inf": "`step_size` must be positive and finite: got inf",
    "predict plan.toml --step-size 0": "`step_size` must be positive and finite: got 0",
    "predict plan.toml --step-size -1": "`step_size` must be positive and finite: got -1",
    "predict plan.toml --step-size abc": "valid float|valid number",
    "predict plan.toml --step-size 1e-300": "`step_size` = 1e-300 means .* 10\\^600 steps",
    "predict plan.toml --step-size 1e-320": "`step_size` = 9.99989e-321 means",
    "predict nld-quadratic --step-size 1e-300": "`step_size` = 1e-300",
    "predict plan.toml --step-size 1e300": "leaves no steps",
    "predict plan.toml --step-size 1e999": "got inf",
    "predict plan.toml --digits 0": "`digits` must be a whole number from 1 to 12",
    "predict plan.toml --digits 99": "`digits` must be a whole number from 1 to 12",
    "predict plan.toml --digits two": "valid int",
    "predict plan.toml extra": "unexpected extra argument",
    "predict plan.toml --nothing": "No such option",
    "run nothing.toml": "There is no plan file",
    "run plan.toml --num-chains 0": "`num_chains` must be a whole number from 1 up: got 0",
    "run plan.toml --num-chains -5": "`num_chains` must be",
    "run plan.toml --num-chains 10000000000000000": "chains .* GiB",
    "run plan.toml --num-chains 1e3": "valid int",
    "run plan.toml --num-steps 0": "`num_steps` must be a whole number from 1 up: got 0",
    "run plan.toml --num-steps 9223372036854775807": "would take .* years",
    "run plan.toml --num-steps 99999999999999999999": "`num_steps` must be below 2⁶³",
    "run plan.toml --seed -1": "`seed` must be a whole number from 0",
    "run plan.toml --seed 99999999999999999999": "`seed` must be a whole number from 0",
    "run plan.toml --engine warp": "`engine` must be one of auto, pallas, lanes, scan",
    "run plan.toml --on-divergence ignore": "`on_divergence` must be one of raise, report",
    "run plan.toml --step-size 1e-300 --seed 3": "`step_size` = 1e-300",
    "run plan.toml --step-size nan": "`step_size` must be positive",
    "run plan.toml --checkpoint= --every 5": "`checkpoint` must be a directory: got ''",
    "run plan.toml --save=": "takes a file: . is a directory",
    "tune plan.toml --html new.file --save new.file": "`--html` and `--save` both name new.file",
    "reproduce nothing": "nothing",
    "reproduce ../../etc": "etc",
    "reproduce nld-quadratic --profile slow": "profile",
    "reproduce nld-quadratic --engine warp": "`engine` must be one of",
    "reproduce nld-quadratic --seed -1": "`seed` must be a whole number",
    "reproduce nld-quadratic --out file": "is a file",
    "reproduce nld-quadratic --out file/out": "is a file",
    "reproduce nld-quadratic --out /proc/out": "Cannot write",
    "report": "Missing argument",
    "report nothing": "There is no nothing/results.json",
    "report file": "There is no file/results.json",
    "report results": "has schema None",
    "report broken": "cannot be read",
    "report names": "names/results.json was changed after it was written",
    "report foreign": "its checksum differs. Run `gyromc reproduce --out foreign` again",
    "report none --markdown": "its checksum differs",
    "bench nothing": "nothing",
    "bench speed --repeats 0": "`--repeats` must be a whole number from 1 up: got 0",
    "bench speed --repeats -1": "`--repeats` must be",
    "bench speed --repeats 2.5": "valid int",
    "bench speed --seconds 0": "`--seconds` must be positive",
    "bench speed --seconds nan": "`--seconds` must be positive",
    "bench speed --out file": "is a file",
    "fit": "Missing",
    "fit data.csv": "Say what to predict: either `--target COLUMN`",
    "fit nothing.csv -t y": "There is no file nothing.csv",
    "fit . -t y": "is a directory",
    "fit empty.csv -t y": "is empty",
    "fit header.csv -t y": "header line but no rows",
    "fit latin.csv -t y": "byte 0xe9 is not utf-8.*--encoding latin-1",
    "fit data.csv -t nothing": "no column 'nothing'",
    "fit data.csv -t Y": "Did you mean 'y'",
    "fit data.csv -t y --model magic": "Unknown family 'magic': there are",
    "fit data.csv -t y --columns nothing": "no column 'nothing' \\(--columns\\)",
    "fit data.csv -t y --drop nothing": "no column 'nothing' \\(--drop\\)",
    "fit data.csv -t y --drop y": "cannot be dropped",
    "fit data.csv -t y --drop x,z": "no column besides the target",
    "fit data.csv -t y --categorical y": "is the target",
    "fit data.csv -t y --reference x": "takes COLUMN=LEVEL",
    "fit data.csv -t y --reference x=99": "has no such level",
    "fit data.csv -t y --positive yes": "`--positive`",
    "fit data.csv -t y --test-fraction 1.5": "test fraction must lie between",
    "fit data.csv -t y --test-fraction nan": "test fraction must lie between",
    "fit data.csv -t y --prior-scale 0": "`prior_scale` must be positive",
    "fit data.csv -t y --prior-scale 1e200": "`prior_scale` must lie between",
    "fit data.csv -t y --effort much": "`effort` is one of quick",
    "fit data.csv -t y --effort -1": "effort",
    "fit data.csv -t y --effort nan": "effort",
    "fit data.csv -t y --seed -1": "`seed` must be a whole number",
    "fit data.csv -t y --encoding klingon": "Unknown encoding 'klingon'",
    "fit data.csv -t y --decimal x": "decimal sign",
    "fit data.csv -t y --predict nothing.csv": "There is no file nothing.csv",
    "fit data.csv -t y --predict header.csv": "no column|header line",
    "fit data.csv -t y --save new.csv --draws ./new.csv": "`--save` and `--draws` both name ./new.csv",
    "fit data.csv -t y --save done/fit.json --out done": "results would overwrite done/fit.json",
    "fit data.csv -t y --encoding utf-16": "data.csv is not utf-16: UnicodeError",
    "fit data.csv -t y --out file": "is a file",
    "fit data.csv -t y --out file/out": "is a file",
    "fit data.csv -t y --out .": "holds other files",
    "fit data.csv -t y --out /proc/out": "Cannot write",
    "nothing": "No such command",
    "--nothing": "No such option",
}
NESTED = "[" * 3000 + "]" * 3000
# content of a plan file: a piece of the message
PLANS = {
    "": "needs a table \\[target\\]",
    "x": "not valid TOML",
    "\0": "not valid TOML",
    f"x = {NESTED}": "nested too deeply|no key 'x'",
    "x" + ".x" * 5000 + " = 1": "nested too deeply|no key 'x'",
    f"step_size = {'9' * 5000}": "not valid TOML: .*digits|`step_size`",
    plan(step_size=""): "needs a number `step_size`",
    plan(step_size='step_size = "0.1"'): "`step_size` must be .*got '0.1'",
    plan(step_size="step_size = true"): "`step_size` must be a (positive )?number",
    plan(step_size="step_size = nan"): "`step_size` must be positive and finite",
    plan(step_size="step_size = 2024-01-01"): "`step_size` must be a (positive )?number",
    plan(step_size="step_size = [0.1]"): "`step_size` must be a (positive )?number",
    plan(step_size="step_size = {a = 1}"): "`step_size` must be a (positive )?number",
    plan(step_size="step_size = 1e-300"): "`step_size` = 1e-300 means",
    plan(step_size="step_size = 0.1\nnum_steps = 1.5"): "`num_steps` must be a whole number",
    plan(step_size='step_size = 0.1\nseed = "a"'): "`seed` must be a whole number",
    plan(step_size='step_size = 0.1\nstart = "zero"'): "`start`|start",
    plan(step_size="step_size = 0.1\nstart = [[1.0], [1.0, 2.0]]"): "`start`",
    plan(step_size='step_size = 0.1\ndtype = "int8"'): "`dtype` must be one of",
    plan(step_size='step_size = 0.1\nscheme = "magic"'): "`scheme` must be one of",
    plan(step_size="step_size = 0.1\nstep_sise = 0.1"): "Did you mean 'step_size'",
    plan(target="target = 3"): "needs a table \\[target\\]",
    plan(target='target = {kind = "quadratic"}'): "lacks precision",
    plan(target='target = {kind = "quadratick", precision = [1.0, 2.0]}'): "Did you mean 'quadratic'",
    plan(target="target = {kind = [1, 2]}"): "needs a `kind` of .*: got \\[1, 2\\]",
    plan(
        target='target = {kind = "quadratic", precision = ["a", "b"]}'
    ): "line 2, key `target.precision`: `precision` must be numeric",
    plan(target='target = {kind = "quadratic", precision = [[1.0, 2.0], [3.0]]}'): "`precision` must be numeric",
    plan(target='target = {kind = "quadratic", precision = [1.0, -2.0]}'): "positive definite",
    plan(target='target = {kind = "quadratic", precision = [1.0, inf]}'): "`precision` must be finite",
    plan(target='target = {kind = "cosine_perturbed", dim = 1e12, beta = 1.0}'): "of memory are free",
    plan(dynamics='dynamics = {kind = "hfhr"}'): "lacks alpha, gamma",
    plan(dynamics='dynamics = {kind = "rotations", rate = "a"}'): "`rate` must be",
    plan(dynamics='dynamics = {kind = "gaul", C = [1.0, 1.0], a = -1, gamma = 1}'): "`a` must be positive",
    plan(oracle='oracle = {kind = "gaussian", tau = "a"}'): "`tau` must be numeric",
    plan(oracle='oracle = {kind = "minibatch", size = 3}'): "needs a target that is a sum over data",
    plan(observables="observables = {}"): "At least one observable",
    plan(observables="observables = 3"): "needs a table \\[observables\\]",
    plan(observables="observables.x = 3"): "must be a table with a `kind`: got 3",
    plan(observables='observables.x = {kind = "linear", u = [1.0]}'): "direction of 1 numbers",
    plan(observables='observables.x = {kind = "linear", u = []}'): "direction",
    plan(
        observables='observables.x = {kind = "brier", x = [1.0, 0.0], y = 2}'
    ): "`y` must be a whole number from 0 to 1",
    of_data(): "needs `response`, a column of data.csv: x, z, y",
    of_data('csv = "data.csv", response = "q"'): "Got 'q'",
    of_data('csv = "data.csv", response = ["y"]'): "Got \\['y'\\]",
    of_data('csv = "data.csv", response = "y", intercept = "yes"'): "`intercept` must be True or False",
    of_data('csv = "data.csv", response = "y", magic = 1'): "no key 'magic'",
    of_data('csv = "nothing.csv", response = "y"'): "does not exist",
    of_data('csv = ".", response = "y"'): "does not exist",
    of_data('csv = "a\\u0000b", response = "y"'): "does not exist",
    of_data(f'csv = "{"a" * 5000}", response = "y"'): "does not exist",
    of_data('csv = "latin.csv", response = "y"'): "latin.csv, line 3: byte 0xe9 is not utf-8. Save the file as UTF-8.$",
    of_data('csv = "header.csv", response = "y"'): "header.csv has a header line but no rows",
    of_data('csv = "empty.csv", response = "y"'): "holds no lines",
    of_data('csv = "secret.csv", response = "y"'): "secret.csv is not a table of numbers",
    of_data('csv = "/etc/passwd", response = "y"'): "passwd is not a table of numbers",
    of_data('csv = "plan.toml", response = "y"'): "plan.toml",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def fault(done, message):
    """What is wrong with the answer, or None."""
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())  # usage errors come in a box
    if done.returncode != 2 or done.stdout or "Traceback" in text:
        return f"status {done.returncode}: {done.stdout} {text}"
    if len(text) > 1500 or "hunter2" in text or "root:" in text:
        return f"too much is quoted: {text[:300]}"
    return None if re.search(message, text) else text


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_command_that_cannot_work_says_why(arguments, folder):
    before = sorted(os.listdir(folder))
    assert fault(gyromc(*arguments.split(), cwd=folder), COMMANDS[arguments]) is None
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_plan_file_that_cannot_work_says_why(number, folder, tmp_path):
    text, message = list(PLANS.items())[number]
    path = folder / f"plan{number}.toml"
    path.write_text(text, encoding="utf-8")
    try:
        assert fault(gyromc("predict", path.name, cwd=folder), message) is None, text[:200]
    finally:
        path.unlink()
