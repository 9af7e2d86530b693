"""The true answers of the race: mean, standard deviation and standard error of every observable of every posterior.

PYTHONPATH=src:benchmarks python -m accuracy.make_references [NAME ...] [--processes 14] [--minutes 7] [--out FILE]

Three ways, in this order: a formula or quadrature where the posterior has one; importance sampling with scrambled Sobol points
where a Student t around the mode fits well; else long chains of NumPyro's NUTS, whose averages are corrected with control
variates. Every process has one thread and writes its own file; a share of the minutes is given to each, so the command ends in
time whatever the posteriors cost. Output: one JSON file; posteriors that were not named keep their entry.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["REFERENCES", "combined", "main", "read_reference"]

REFERENCES = Path(__file__).parents[2] / "docs" / "measured" / "posteriors.json"
DIGITS = 9  # of stored numbers


@dataclass(frozen=True)
class Settings:
    """How references are computed."""

    scramblings: int = 16
    # Sobol points in each scrambling: 2²⁰ in all take seconds for the regressions, whose errors are then below 0.001 sd.
    points: int = 2**16
    degrees: float = 6.0
    # A quarter of the points come from a component so many times as wide, for tails heavier than those of the t.
    wide: float = 2.5
    share: float = 0.25
    # Importance sampling is refused beyond 15 parameters, and where fewer of the draws than this are effective.
    most_importance: int = 15
    least_efficiency: float = 0.2
    # Chains of NUTS in a process, and draws in one call of the compiled function.
    chains: int = 8
    warm_up: int = 1000
    together: int = 50
    most_draws: int = 40_000
    # The mass matrix is dense up to here; beyond, 1000 draws do not determine it well.
    most_dense: int = 60
    # Batches of each chain, for standard errors.
    batches: int = 25
    # All products of two parameters are control variates up to so many parameters; beyond, squares, and products with the
    # first parameters, which are the scales in every model here.
    most_pairs: int = 60
    drivers: int = 6
    # Draws from which coefficients of control variates are found: twenty for each coefficient at least.
    fitted_draws: int = 40_000
    # Seconds kept for them, after the last draw.
    seconds_after: float = 35.0


SETTINGS = Settings()
# Processes more than others for posteriors whose draws cost most or say least.
MORE_PARTS = {"horseshoe": 1, "volatility": 1}
# Acceptance rates of NUTS other than 0.8, where steps must be short for no trajectory to diverge.
ACCEPTANCE = {"horseshoe": 0.98, "network": 0.95, "mixture": 0.9, "car": 0.9, "factors": 0.9, "volatility": 0.9}


def read_reference(name: str, path: Path = REFERENCES) -> dict:
    """The entry of a posterior: `names`, `mean`, `sd`, `error` and how they were found; `ValueError` where there is none."""
    entries = json.loads(path.read_text(encoding="utf-8"))["posteriors"] if path.exists() else {}
    if name not in entries:
        raise ValueError(f"{path} has no {name}. Run `python -m accuracy.make_references {name}` first.")
    entry = entries[name]
    return entry | {key: np.array(entry[key], float) for key in ("mean", "sd", "error")}


# --- importance sampling ----------------------------------------------------------------------------------------------


def by_importance(posterior) -> dict | None:
    """Moments by self-normalised importance sampling; None where a Student t around the mode does not fit."""
    import jax
    import jax.numpy as jnp
    from scipy import optimize, stats

    if posterior.dim > SETTINGS.most_importance:
        return None
    potential = jax.jit(jax.value_and_grad(lambda x: -posterior.log_density(x)))
    found = optimize.minimize(
        lambda x: tuple(np.asarray(v, float) for v in potential(x)), posterior.first, jac=True, method="BFGS"
    )
    hessian = np.asarray(jax.hessian(lambda x: -posterior.log_density(x))(jnp.asarray(found.x)))
    if not np.isfinite(hessian).all() or np.linalg.eigvalsh(hessian)[0] <= 0:
        return None
    center, root = found.x, np.linalg.inv(np.linalg.cholesky(hessian)).T
    both = jax.jit(lambda rows: (jax.lax.map(posterior.log_density, rows, batch_size=256), _observed(posterior, rows)))
    parts, efficiency = [], 0.0
    # the first pass replaces the Gaussian at the mode by the weighted mean and covariance, which skewed posteriors need
    for k in range(-1, SETTINGS.scramblings):
        theta, proposed = _student(center, root, k, stats)
        logs, values = (np.asarray(a) for a in both(jnp.asarray(theta)))
        logs = np.where(np.isfinite(logs), logs - proposed, -np.inf)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        efficiency = 1 / (len(weights) * np.sum(weights**2))
        if k == -1:
            center, away = weights @ theta, theta - weights @ theta
            root = np.linalg.cholesky((weights[:, None] * away).T @ away)
        elif efficiency < SETTINGS.least_efficiency:
            return None
        else:
            mean = weights @ values
            parts.append((mean, weights @ (values - mean) ** 2, efficiency, weights.max()))
    means = np.array([part[0] for part in parts])
    total = SETTINGS.points * SETTINGS.scramblings
    worst = max(part[3] for part in parts)
    return {
        "method": f"importance sampling, {total} scrambled Sobol points, {efficiency:.0%} effective, "
        f"largest weight {worst:.1g}",
        "mean": means.mean(axis=0),
        "sd": np.sqrt(np.mean([part[1] for part in parts], axis=0)),
        "error": means.std(axis=0, ddof=1) / math.sqrt(len(means)),
    }


def _student(center: np.ndarray, root: np.ndarray, seed: int, stats) -> tuple[np.ndarray, np.ndarray]:
    """Draws of two Student t around `center`, one of them wider, and their log densities up to a constant."""
    d, nu, wide, share = len(center), SETTINGS.degrees, SETTINGS.wide, SETTINGS.share
    u = stats.qmc.Sobol(d + 2, rng=np.random.default_rng(1000 + seed)).random(SETTINGS.points)
    u = np.clip(u, 1e-12, 1 - 1e-12)
    z = stats.norm.ppf(u[:, :d]) / np.sqrt(stats.chi2(nu).ppf(u[:, d]) / nu)[:, None]
    z *= np.where(u[:, d + 1] < share, wide, 1.0)[:, None]
    logs = lambda scale: -0.5 * (nu + d) * np.log1p(np.sum((z / scale) ** 2, axis=1) / nu) - d * math.log(scale)
    return center + z @ root.T, np.logaddexp(math.log1p(-share) + logs(1.0), math.log(share) + logs(wide))


def _observed(posterior, rows):
    import jax

    return jax.lax.map(posterior.observables, rows, batch_size=256)


# --- chains of NUTS ---------------------------------------------------------------------------------------------------


class _Eased:
    """A posterior over φ with θ = easier(φ), element by element."""

    def __init__(self, posterior):
        self.name, self.dim, self.first = posterior.name, posterior.dim, np.zeros(posterior.dim)
        self._posterior = posterior

    def log_density(self, phi):
        """The density of φ: that of θ times dθ/dφ."""
        import jax
        import jax.numpy as jnp

        theta, slope = jax.jvp(self._posterior.easier, (phi,), (jnp.ones_like(phi),))
        return self._posterior.log_density(theta) + jnp.sum(jnp.log(slope))

    def observables(self, phi):
        """Those of θ."""
        return self._posterior.observables(self._posterior.easier(phi))


def by_nuts(posterior, seed: int, deadline: float) -> dict:
    """Moments from chains of NUTS that end at the deadline (of `time.monotonic`), with control variates."""
    posterior = posterior if posterior.easier is None else _Eased(posterior)
    draws, gradients, divergences = _chains(posterior, seed, deadline)
    if draws.shape[1] < 2 * SETTINGS.batches:
        raise TimeoutError(f"{posterior.name}: only {draws.shape[1]} draws of each chain before the deadline.")
    values = _values(posterior, draws)
    plain, corrected = _corrected(draws, gradients, values)
    better = corrected[1] < plain[1]
    error = np.where(better, corrected[1], plain[1])
    sd = values.std(axis=(0, 1))
    gap = (corrected[0] - plain[0]) / np.sqrt(np.maximum(plain[1] ** 2 - corrected[1] ** 2, 1e-4 * plain[1] ** 2))
    return {
        "method": f"NumPyro NUTS, {draws.shape[0]} chains of {draws.shape[1]} draws, control variates",
        "mean": np.where(better, corrected[0], plain[0]),
        "sd": sd,
        "error": error,
        "r_hat": float(_r_hat(values).max()),
        "divergences": divergences,
        "least_effective_draws": float(np.min((sd / plain[1]) ** 2)),
        "gained": float(np.median((plain[1] / error) ** 2)),
        "control_variates_z2": float(np.mean(gap**2)),
    }


def _chains(posterior, seed: int, deadline: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws and gradients of the log density, chains × draws × parameters each, and the number of divergent draws."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import NUTS

    potential = lambda theta: -posterior.log_density(theta)
    rate = ACCEPTANCE.get(posterior.name, 0.8)
    kernel = NUTS(potential_fn=potential, dense_mass=posterior.dim <= SETTINGS.most_dense, target_accept_prob=rate)
    noise = np.random.default_rng([5, seed]).standard_normal((SETTINGS.chains, posterior.dim))
    starts = jnp.asarray(posterior.first + 0.3 * noise)
    keys = jax.random.split(jax.random.key(seed), SETTINGS.chains)
    state = jax.jit(lambda keys, starts: kernel.init(keys, SETTINGS.warm_up, starts, (), {}))(keys, starts)

    def some(state):
        def one(state, _):
            state = kernel.sample(state, (), {})
            return state, (state.z, -state.z_grad, state.diverging)

        return jax.lax.scan(one, state, None, length=SETTINGS.together)

    ready = jax.jit(some).lower(state).compile()
    for _ in range(SETTINGS.warm_up // SETTINGS.together):
        state, _ = ready(state)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{posterior.name}: the warm-up of NUTS did not end before the deadline.")
    kept = []
    for _ in range(SETTINGS.most_draws // SETTINGS.together):
        state, found = ready(state)
        kept.append([np.asarray(part) for part in found])
        if time.monotonic() > deadline:
            break
    z, gradient, diverging = (np.concatenate(parts).swapaxes(0, 1) for parts in zip(*kept, strict=True))
    return z, gradient, int(diverging.sum())


def _values(posterior, draws: np.ndarray) -> np.ndarray:
    """All observables at the draws, chains × draws × observables."""
    import jax
    import jax.numpy as jnp

    rows = jnp.asarray(draws.reshape(-1, posterior.dim))
    return np.asarray(jax.jit(lambda rows: _observed(posterior, rows))(rows)).reshape(*draws.shape[:2], -1)


def _corrected(draws: np.ndarray, gradients: np.ndarray, values: np.ndarray) -> tuple:
    """(mean, standard error) of the plain averages, and with control variates, from batches of the chains.

    A control variate is Δφ + ∇φ·∇log p for a polynomial φ, whose expectation is zero. Coefficients for one half of the chains
    come from the other half, so that they are independent of what they correct.
    """
    chains, count, d = draws.shape
    length = count // SETTINGS.batches
    used = slice(count - length * SETTINGS.batches, count)
    draws, gradients, values = draws[:, used], gradients[:, used], values[:, used]
    center, scale = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    pairs = _pairs(d)

    def features(chain: int, part: slice) -> np.ndarray:
        z, score = (draws[chain, part] - center) / scale, gradients[chain, part] * scale
        a, b = pairs
        return np.concatenate([score, z[:, a] * score[:, b] + z[:, b] * score[:, a] + 2.0 * (a == b)], axis=1)

    every = max(1, chains * count // SETTINGS.fitted_draws)
    mean = values.mean(axis=(0, 1))
    fits = []
    for half in (0, 1):
        gram, cross, total, rest, rows = 0.0, 0.0, 0.0, 0.0, 0
        for chain in range(half, chains, 2):
            F, h = features(chain, slice(None, None, every)), values[chain, ::every] - mean
            gram, cross, rows = gram + F.T @ F, cross + F.T @ h, rows + len(F)
            total, rest = total + F.sum(axis=0), rest + h.sum(axis=0)
        # with an intercept: what a linear function of the control variates leaves has no slope on them
        fits.append(_solve(gram - np.outer(total, total) / rows, cross - np.outer(total, rest) / rows))
    means = values.reshape(chains, SETTINGS.batches, length, -1).mean(axis=2)
    corrected = means.copy()
    for half in (0, 1):
        coefficients = fits[1 - half]
        for chain in range(half, chains, 2):
            for k in range(SETTINGS.batches):
                F = features(chain, slice(k * length, (k + 1) * length))
                corrected[chain, k] -= F.mean(axis=0) @ coefficients
    return _over_batches(means), _over_batches(corrected)


def _pairs(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the products of two parameters that are used."""
    most = d if d <= SETTINGS.most_pairs else SETTINGS.drivers
    found = [(i, j) for i in range(most) for j in range(i, d)] + [(i, i) for i in range(most, d)]
    a, b = np.array(found).T
    return a, b


def _solve(gram: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Least squares with columns scaled to one; the small ridge is for products that say the same."""
    scale = np.sqrt(np.diag(gram))
    scaled = gram / np.outer(scale, scale) + 1e-8 * np.eye(len(gram))
    return np.linalg.solve(scaled, cross / scale[:, None]) / scale[:, None]


def _over_batches(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error: the larger of the errors between batches and between chains, as far as few chains tell."""
    chains, batches = means.shape[:2]
    flat = means.reshape(chains * batches, -1)
    within = flat.std(axis=0, ddof=1) / math.sqrt(len(flat))
    between = means.mean(axis=1).std(axis=0, ddof=1) / math.sqrt(chains)
    # the spread of eight chains varies by a quarter itself: only where it is clearly larger do chains differ
    return flat.mean(axis=0), np.where(between > 1.5 * within, between, within)


def _r_hat(values: np.ndarray) -> np.ndarray:
    """Split R-hat of every observable, from chains × draws × observables."""
    half = values.shape[1] // 2
    parts = np.concatenate([values[:, :half], values[:, half : 2 * half]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    return np.sqrt((half - 1) / half + parts.mean(axis=1).var(axis=0, ddof=1) / within)


# --- one process, and all of them -------------------------------------------------------------------------------------


def one_part(name: str, part: int, seconds: float, core: int | None) -> dict:
    """What one process computes: a reference, or a part of one."""
    began = time.monotonic()
    if core is not None:
        os.sched_setaffinity(0, {core})
    import jax

    jax.config.update("jax_enable_x64", True)
    from accuracy.posteriors import posterior

    one = posterior(name)
    found = None
    if one.exact is not None:
        moments = one.exact()
        found = {"method": moments.method, "mean": moments.mean, "sd": moments.sd, "error": moments.error}
    elif part == 0:
        found = by_importance(one)
    found = found or by_nuts(one, part, began + seconds - SETTINGS.seconds_after)
    found = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in found.items()}
    return {"names": list(one.names), "seconds": round(time.monotonic() - began, 1), **found}


def combined(parts: list[dict]) -> dict:
    """One entry from the parts of a posterior, weighted by their precision."""
    if len(parts) == 1:
        return parts[0]
    mean, sd, error = (np.array([part[key] for part in parts], float) for key in ("mean", "sd", "error"))
    weights = error**-2 / np.sum(error**-2, axis=0)
    found = parts[0] | {
        "method": f"{len(parts)} times: {parts[0]['method']}",
        "mean": np.sum(weights * mean, axis=0).tolist(),
        "sd": np.sqrt(np.mean(sd**2, axis=0)).tolist(),
        "error": (np.sum(error**-2, axis=0) ** -0.5).tolist(),
        "parts_z2": float(np.mean((mean[0] - mean[1]) ** 2 / (error[0] ** 2 + error[1] ** 2))),
        "seconds": sum(part["seconds"] for part in parts),
    }
    for key, join in {"r_hat": max, "divergences": sum, "least_effective_draws": sum}.items():
        found[key] = join(part[key] for part in parts)
    return found


def _rounded(entry: dict) -> dict:
    """Numbers with as many digits as are worth storing."""
    short = lambda x: float(f"{x:.{DIGITS}g}")
    return {
        key: [short(x) for x in value]
        if key in ("mean", "sd", "error")
        else short(value)
        if isinstance(value, float)
        else value
        for key, value in entry.items()
    }


def _summary(name: str, entry: dict) -> str:
    """One line about an entry."""
    worst = np.max(np.array(entry["error"]) / np.array(entry["sd"]))
    extra = [f"{key} {entry[key]:.4g}" for key in ("r_hat", "divergences", "gained", "parts_z2") if key in entry]
    doubtful = entry.get("r_hat", 1.0) > 1.005 or entry.get("divergences", 0) > 0
    return (
        f"{name}: errors up to {worst:.1e} sd; {', '.join([entry['method'], *extra])}{'  <- CHECK' if doubtful else ''}"
    )


def store(path: Path, entries: dict[str, dict]) -> None:
    """Write entries into the file; the others in it stay."""
    known = json.loads(path.read_text(encoding="utf-8"))["posteriors"] if path.exists() else {}
    known |= {name: _rounded(entry) for name, entry in entries.items()}
    from gyromc.show.pages import machine

    head = {"environment": machine(), "command": "PYTHONPATH=src:benchmarks python -m accuracy.make_references"}
    lines = [f" {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in sorted(known.items())]
    text = json.dumps(head, ensure_ascii=False)[:-1] + ',\n"posteriors": {\n' + ",\n".join(lines) + "\n}}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _environment() -> dict[str, str]:
    """One thread for every process, on the processor, in this checkout."""
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        **{f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")},
    }


def all_parts(
    names: list[str], parts: int, processes: int, minutes: float, folder: Path, pin: bool
) -> dict[str, list[dict]]:
    """Run a process for each part, so many at a time; parts that failed are reported and left out."""
    from accuracy.posteriors import posterior

    built = [posterior(name) for name in names]
    # what chains may have to answer comes first and has the whole time, or half of it where there are more tasks than processes
    slow = [one.name for one in built if one.exact is None and one.dim > SETTINGS.most_importance]
    tasks = [(name, part) for name in slow for part in range(parts + MORE_PARTS.get(name, 0))]
    waves = -(-len(tasks) // processes) if tasks else 1
    tasks += [(one.name, 0) for one in built if one.name not in slow]
    seconds = 60 * minutes / waves
    ends, waiting, running, free = time.monotonic() + 60 * minutes, tasks, {}, list(range(processes))
    found: dict[str, list[dict]] = {name: [] for name in names}
    while waiting or running:
        while waiting and free:
            (name, part), slot = waiting.pop(0), free.pop(0)
            left = min(seconds, ends - time.monotonic())
            command = [sys.executable, "-m", "accuracy.make_references", "--one", name, "--part", str(part)]
            command += ["--seconds", f"{left:.0f}", "--out", str(folder / f"{name}-{part}.json")]
            command += ["--core", str(slot % (os.cpu_count() or 1))] if pin else []
            running[slot] = name, part, subprocess.Popen(command, env=_environment())
        for slot, (name, part, process) in list(running.items()):
            if process.poll() is None:
                continue
            del running[slot]
            free.append(slot)
            path = folder / f"{name}-{part}.json"
            if process.returncode == 0 and path.exists():
                found[name].append(json.loads(path.read_text()))
                print(_summary(f"{name} {part}", found[name][-1]), flush=True)
            else:
                print(f"{name} {part}: failed, see above", flush=True)
        time.sleep(0.2)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=int, default=1, help="processes that share the chains of a posterior")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--out", type=Path, default=REFERENCES)
    parser.add_argument("--pin", action="store_true", help="each process on a core of its own")
    for hidden, kind in {"--one": str, "--part": int, "--seconds": float, "--core": int}.items():
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        asked.out.write_text(json.dumps(one_part(asked.one, asked.part, asked.seconds, asked.core)))
        return
    from accuracy.posteriors import POSTERIORS

    wrong = [name for name in asked.names if name not in POSTERIORS]
    if wrong:
        parser.error(f"no posterior is named {', '.join(wrong)}. There is: {', '.join(POSTERIORS)}.")
    with tempfile.TemporaryDirectory() as folder:
        parts = all_parts(
            asked.names or list(POSTERIORS), asked.parts, asked.processes, asked.minutes, Path(folder), asked.pin
        )
    entries = {name: combined(some) for name, some in parts.items() if some}
    store(asked.out, entries)
    print()
    for name, entry in entries.items():
        print(_summary(name, entry))


if __name__ == "__main__":
    main()
