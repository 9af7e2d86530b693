"""What the page says at the ends of its settings: numbers that can be read, and a way out of every refusal."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gyromc.explore.server import FOLDER

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
SCRIPT = Path(__file__).with_name("texts.mjs")
UNREADABLE = re.compile(r"NaN|Infinity|undefined|null|± –|\d{8}|\.0{4}\d|\.\d{8}|e[+-]\d")
STIFF = {"kappa": 100, "tau": 10, "angle": 90}
CASES = {
    "noise equation without a solution": {"kappa": 1, "angle": 90, "eta": 2, "tau": 10, "scheme": "lm_ab2"},
    "limit below a millionth": {**STIFF, "dynamics": "hfhr", "alpha": 10, "gamma": 50, "scheme": "hfhr_splitting"},
    "limit below the slider": {**STIFF, "omega": 20, "scheme": "balanced", "eta": 0.0005},
    "one chain": {"chains": 1},
    "diverged": {"kappa": 12, "eta": 1.93, "omega": 0.5},
    "typed digits": {"omega": 1.23456789012345, "eta": 0.0123456789012345},
    "unstable for long": {"kappa": 100, "eta": 2, "observable": "t1sq"},
    "D not positive definite": {"dynamics": "gaul", "a": 0.01, "gaulGamma": 0.05, "c1": 0.05, "c2": 10},
}


@pytest.fixture(scope="module")
def said():
    command = [str(NODE), str(SCRIPT), str(FOLDER), json.dumps(list(CASES.values())), "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_all_texts_can_be_read(said, case):
    found = said[case]
    wrong = [text for text in [found["headline"], *found["cells"]] if UNREADABLE.search(text)]
    assert wrong == []
    assert not {"NaN", "null", "Infinity", "-Infinity"} & {*found["axes"], *found["range"]}


def test_a_refusal_says_what_can_be_done(said):
    assert "Steps on this page begin at 0.0005" in said["limit below the slider"]["headline"]
    assert "smaller step" in said["limit below a millionth"]["headline"]
    assert "…" not in said["limit below a millionth"]["cells"]


def test_no_gain_is_shown_while_chains_diverge(said):
    assert "there is no gain" in said["diverged"]["headline"] or "smaller step" in said["diverged"]["headline"]
    assert "×" not in said["diverged"]["headline"]


def test_slow_convergence_of_the_polynomials_is_not_taken_for_an_answer():
    """β = 2 with little friction: V is 82.14, and degree 15 says 78.7, degree 12 says 79.9."""
    text = """
      const load = (name) => import(process.argv[1] + "/js/" + name + ".mjs");
      const [spectral, targets, dynamics] = await Promise.all(["spectral", "targets", "dynamics"].map(load));
      const target = targets.makeTarget({ target: "cosine", beta: 2 });
      const h = { u: [1, 1], square: false };
      console.log(JSON.stringify(spectral.finish(spectral.variance(target, dynamics.hfhr(0.0248, 0.106), h))));
    """
    command = [str(NODE), "--input-type=module", "-e", text, FOLDER.as_uri()]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert abs(found["value"] - 82.14) < found["error"]
