"""Speed: chain-steps per second of every engine and of other packages, on the same work, in one run.

Input: which work, and for how long. Output: measurements as a table, JSON and a plot. Each competitor moves the same number of
chains with the same sampler and averages the same observable. Compiling and a warm-up come first and are timed separately.
Competitors take turns within each repeat, so that other load on the machine affects all of them. Figures are medians over
repeats, with the slowest and the fastest. Compare figures of one run only.
"""

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import gyromc as gm
from gyromc.checks import require
from gyromc.engines import scan
from gyromc.show.pages import machine
from gyromc.show.tables import Table
from speed.peers import COMPETITORS, GROWTH, WORK, Work
from speed.schemes import scheme_work

__all__ = ["Measurement", "measure", "plot", "plot_growth", "ratios", "report", "table"]

LARGE = 10**5  # parameters: memory is measured from here on


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One competitor on one piece of work."""

    work: str
    competitor: str
    chains: int
    steps: int
    terms: int  # data terms (or 1) that one gradient reads
    compile_seconds: float
    seconds: tuple[float, ...]
    dim: int
    varied: str = ""  # chains, dimension or steps, where this is one of a series
    memory: float | None = None  # what a step holds over state + gradient + noise, for large states in engine scan
    against: str = ""  # the work whose time this one's is divided by

    @property
    def chain_steps(self) -> float:
        """Median chain-steps per second; each is one gradient evaluation."""
        return self.chains * self.steps / statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest repeat, in chain-steps per second."""
        return self.chains * self.steps / max(self.seconds), self.chains * self.steps / min(self.seconds)

    def as_dict(self) -> dict:
        """Everything, for JSON."""
        low, high = self.spread
        return {
            **dataclasses.asdict(self),
            "chain_steps_per_second": self.chain_steps,
            "gradient_terms_per_second": self.chain_steps * self.terms,
            "slowest": low,
            "fastest": high,
        }


def measure(
    names: Sequence[str] = (),
    repeats: int = 5,
    seconds: float = 0.5,
    growth: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Measure the competitors side by side.

    **Arguments:**

    - `names`: which work, by name; empty: all of it.
    - `repeats`: how often each is timed.
    - `seconds`: about how long one timing takes; the number of steps follows from it.
    - `growth`: also vary the number of chains, the dimension and the number of steps.
    - `say`: called with a line of progress.

    ```python
    from speed import measure
    results = measure(["nonquadratic"], repeats=1, seconds=0.001)
    assert {m.work for m in results} == {"nonquadratic"}
    ```
    """
    everything = (*WORK, *scheme_work())
    known = [w.name for w in everything]
    unknown = [name for name in names if name not in known]
    require(not unknown, f"No work is named {', '.join(unknown)}. There is: {', '.join(known)}.")
    chosen = [w for w in everything if not names or w.name in names]
    if growth:
        chosen += GROWTH
    results: list[Measurement] = []
    for together in _compared(chosen):
        results += _side_by_side(together, repeats, seconds, say)
    return results


def _compared(works: Sequence[Work]) -> list[list[Work]]:
    """The work in groups: what is compared with each other takes turns."""
    groups: list[list[Work]] = []
    for work in works:
        if groups and work.against in [other.name for other in groups[-1]]:
            groups[-1].append(work)
        else:
            groups.append([work])
    return groups


def _side_by_side(works: list[Work], repeats: int, seconds: float, say: Callable[[str], None]) -> list[Measurement]:
    ready = [entry for work in works for entry in _prepared(work, seconds, say)]
    timings: list[list[float]] = [[] for _ in ready]
    for _ in range(repeats):
        for spent, (_, _, go, steps, _) in zip(timings, ready, strict=True):
            began = time.perf_counter()
            go(steps)
            spent.append(time.perf_counter() - began)
    return [
        Measurement(
            work.name,
            name,
            work.chains,
            steps,
            work.terms,
            compiled,
            tuple(spent),
            work.plan.dim,
            work.varied,
            _memory(work, name),
            work.against,
        )
        for spent, (work, name, _, steps, compiled) in zip(timings, ready, strict=True)
    ]


def _prepared(
    work: Work, seconds: float, say: Callable[[str], None]
) -> list[tuple[Work, str, Callable[[int], None], int, float]]:
    """The competitors that can do the work, compiled: a function of the number of steps, how many to make, compile time."""
    say(f"{work.name}: {work.description}")
    ready = []
    for name, competitor in COMPETITORS.items():
        if competitor.needs and importlib.util.find_spec(competitor.needs) is None:
            say(f"  {name}: left out, {competitor.needs} is not installed")
            continue
        if (work.only and name not in work.only) or not competitor.can(work):
            continue
        began = time.perf_counter()
        go = competitor.prepare(work)
        go(work.first_steps)
        compiled = time.perf_counter() - began
        steps = work.steps or _enough_steps(go, work.first_steps, seconds)
        ready.append((work, name, go, steps, compiled))
        say(f"  {name}: {steps} steps")
    return ready


def _memory(work: Work, competitor: str) -> float | None:
    """The memory of a step of engine `scan`, as a multiple of state + gradient + noise; None for small states."""
    if competitor != "gyromc scan" or work.plan.dim < LARGE:
        return None
    held, needed = step_memory(work.plan)
    return held / needed


def step_memory(plan: gm.Plan) -> tuple[int, int]:
    """The bytes of a step of engine `scan`: state and temporary memory, by XLA's analysis; three times the state."""
    session = scan.Session(plan, scan.initial_state(plan), 1e8, None, 0)
    arguments = session.arrays, session.carries[0], session.layout.firsts[0], np.int32(1), np.int32(0), None
    memory = session.program.lower(*arguments).compile().memory_analysis()
    state = sum(carry.z.nbytes for carry in session.carries)
    return memory.temp_size_in_bytes + state, 3 * state


def _enough_steps(go: Callable[[int], None], steps: int, seconds: float) -> int:
    """The number of steps that takes about so many seconds, found by trials; the last one tried is compiled and warm."""
    while True:
        began = time.perf_counter()
        go(steps)
        spent = max(time.perf_counter() - began, 1e-6)
        if spent >= seconds / 3:
            return steps
        steps = int(steps * min(20.0, max(1.5, seconds / spent)))
        go(steps)


def table(results: Sequence[Measurement]) -> Table:
    """Return the table of all measurements; two columns compare with BlackJAX and with a bare `lax.scan`."""
    peers = ("BlackJAX SGLD", "lax.scan")
    columns = ["work", "competitor", "chains × steps", "median", "slowest … fastest", "compile, s"]
    columns += [*(f"× {peer}" for peer in peers), "memory"]
    rows = [
        [
            m.work,
            m.competitor,
            f"{m.chains} × {m.steps}",
            f"{m.chain_steps / 1e6:.3g}",
            f"{m.spread[0] / 1e6:.3g} … {m.spread[1] / 1e6:.3g}",
            f"{m.compile_seconds:.1f}",
            *(_ratio(m, results, peer) for peer in peers),
            "" if m.memory is None else f"{m.memory:.2f}",
        ]
        for m in results
    ]
    title = "Millions of chain-steps (gradient evaluations) per second, medians of one run"
    notes = ["memory: what a step holds, over state + gradient + noise"] if any(m.memory for m in results) else []
    notes += [f"{pair}: {ratio:.2f} times as long per step" for pair, ratio in ratios(results).items()]
    return Table(columns, rows, title, notes, left=["work", "competitor"])


def ratios(results: Sequence[Measurement]) -> dict[str, float]:
    """The time of a step over that of the work it is compared with, for the same competitor: medians over the turns they took."""
    found = {}
    for m in results:
        for other in results:
            if m.against and (other.work, other.competitor) == (m.against, m.competitor):
                turns = [(a / m.steps) / (b / other.steps) for a, b in zip(m.seconds, other.seconds, strict=True)]
                found[f"{m.competitor}, {m.work} against {other.work}"] = statistics.median(turns)
    return found


def _ratio(m: Measurement, results: Sequence[Measurement], peer: str) -> str:
    found = [r for r in results if r.work == m.work and r.competitor == peer]
    return f"{m.chain_steps / found[0].chain_steps:.1f}" if found else ""


def plot_growth(results: Sequence[Measurement], path: str | Path) -> bool:
    """Chain-steps per second against chains, dimension and steps, a panel each; False where nothing was varied."""
    from matplotlib.figure import Figure

    series = list(dict.fromkeys(m.varied for m in results if m.varied))
    if not series:
        return False
    figure = Figure(figsize=(3.4 * len(series), 3.2), layout="constrained")
    for axes, varied in zip(figure.subplots(1, len(series), squeeze=False, sharey=True)[0], series, strict=True):
        for number, name in enumerate(dict.fromkeys(m.competitor for m in results if m.varied == varied)):
            rows = [m for m in results if m.varied == varied and m.competitor == name]
            x = [{"chains": m.chains, "dimension": m.dim, "steps": m.steps}[varied] for m in rows]
            y = [m.chain_steps for m in rows]
            spread = [[m.chain_steps - m.spread[0] for m in rows], [m.spread[1] - m.chain_steps for m in rows]]
            axes.errorbar(x, y, spread, marker="o", color=f"C{number}", label=name, capsize=2)
        axes.set(xscale="log", yscale="log", xlabel=varied)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("chain-steps per second")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path)
    return True


def plot(results: Sequence[Measurement], path: str | Path) -> None:
    """Bars of chain-steps per second for each piece of work, with their spread; what was varied has a plot of its own."""
    from matplotlib.figure import Figure

    results = [m for m in results if not m.varied] or results
    works = list(dict.fromkeys(m.work for m in results))
    figure = Figure(figsize=(8, 1.2 + 0.28 * len(results)), layout="constrained")
    panels = figure.subplots(len(works), 1, squeeze=False, sharex=True)[:, 0]
    for axes, work in zip(panels, works, strict=True):
        rows = [m for m in results if m.work == work]
        values = [m.chain_steps for m in rows]
        spread = [[m.chain_steps - m.spread[0] for m in rows], [m.spread[1] - m.chain_steps for m in rows]]
        colours = ["C0" if m.competitor.startswith("gyromc") else "0.7" for m in rows]
        axes.barh([m.competitor for m in rows], values, xerr=spread, color=colours)
        axes.set_xscale("log")
        axes.set_title(work, loc="left", fontsize="medium")
        axes.invert_yaxis()
    panels[-1].set_xlabel("chain-steps per second")
    figure.savefig(path)


def report(results: Sequence[Measurement]) -> dict:
    """The measurements with the machine they were made on."""
    import jax
    import numba

    from gyromc.engines.lanes import num_threads

    return {
        "environment": machine(),
        "numba": numba.__version__,
        "backend": jax.default_backend(),
        "threads": num_threads(),
        "measurements": [m.as_dict() for m in results],
        "ratios": ratios(results),
    }
