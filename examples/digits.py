"""A Bayesian neural network on scikit-learn's digits: HFHR with mini-batches against a well-tuned point estimate.

A Flax network learns the digits 0 to 7 from 200 labelled, noisy images. Its posterior is sampled by HFHR with mini-batches.
The average of the chains' predictions is compared with the same network trained by Adam on the same images (weight decay,
learning rate and early stopping by four-fold cross-validation, then trained on all of them), and with an ensemble of such
networks. The digits 8 and 9 are never shown in training; the example also compares the predictions for them.

    python examples/digits.py                    # several seeds, a few minutes; writes results/digits/
    python examples/digits.py --quick            # one seed, seconds, to see that it works
    python examples/digits.py --tuned            # sampler, step size and batches by gm.tune, for as many rows of data
"""

import argparse
import dataclasses
import functools
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import gyromc as gm
from gyromc.show.pages import machine

SEEN, PIXELS = 8, 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings. Prior, noise and step size were chosen on split 0; the comparison uses splits 1, 2, …"""

    noise: float = 0.5  # standard deviation of the pixels' noise; ink is 1, paper 0
    labelled: int = 200
    hidden: int = 24
    scale_in: float = 1.0  # prior standard deviation of a hidden unit's input, roughly
    scale_out: float = 10.0  # prior standard deviation of a logit, roughly
    smoothness: float = 1.0  # prior correlation length of the first layer's weights, in pixels
    alpha: float = 0.2
    gamma: float = 2.0
    step_size: float = 2e-3
    batch: int = 32
    chains: int = 32
    burn_in: int = 1500
    steps: int = 2000
    thin: int = 50
    scales: tuple[float, ...] = (2.0, 5.0, 12.0, 36.0)  # the point estimate chooses its own scale_out: its weight decay
    rates: tuple[float, ...] = (5e-3, 1.5e-2, 4e-2)
    folds: int = 4
    epochs: int = 60
    mode_rate: float = 4e-3  # the posterior's own mode: trained to the end, no early stopping
    mode_epochs: int = 400
    restarts: int = 5
    tuned: bool = False  # whether `gm.tune` finds the sampler, instead of alpha, gamma, step_size and batch

    def quick(self) -> "Settings":
        return dataclasses.replace(
            self,
            chains=4,
            burn_in=200,
            steps=400,
            thin=40,
            scales=(12.0,),
            rates=(1.5e-2,),
            epochs=8,
            mode_epochs=8,
            restarts=2,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Images as rows of 64 numbers with their digits, centred and scaled by the labelled images."""

    labelled: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    unseen: np.ndarray


def load(seed: int, settings: Settings) -> Split:
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images / 16 + settings.noise * rng.standard_normal(images.shape)
    order = rng.permutation(np.flatnonzero(digits < SEEN))
    known, rest = order[: settings.labelled], order[settings.labelled :]
    images = images - images[known].mean(0)
    images = (images / images[known].std()).astype(np.float32)
    digits = digits.astype(np.int32)
    return Split((images[known], digits[known]), (images[rest], digits[rest]), images[digits >= SEEN])


class Network(nnx.Module):
    """One hidden layer."""

    def __init__(self, hidden: int, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(PIXELS, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, SEEN, rngs=rngs)

    def __call__(self, x):
        return self.out(jax.nn.relu(self.hidden(x)))


class Model:
    """The network as a function of parameters that are standard normal a priori."""

    def __init__(self, settings: Settings):
        self.graph, state = nnx.split(Network(settings.hidden, nnx.Rngs(0)))
        self.template = nnx.to_pure_dict(state)
        self.settings = settings
        row, column = np.divmod(np.arange(PIXELS), 8)
        distance = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
        covariance = np.exp(-distance / (2 * settings.smoothness**2)) + 1e-4 * np.eye(PIXELS)
        self.smooth = np.linalg.cholesky(covariance).astype(np.float32)

    def logits(self, params, x, scale_out=None):
        """Neighbouring pixels have similar weights; each layer is scaled so that its outputs have the prior's size."""
        a, b = self.settings.scale_in, self.settings.scale_out if scale_out is None else scale_out
        weights = {
            "hidden": {
                "kernel": a / PIXELS**0.5 * (self.smooth @ params["hidden"]["kernel"]),
                "bias": a / 2 * params["hidden"]["bias"],
            },
            "out": {
                "kernel": b / self.settings.hidden**0.5 * params["out"]["kernel"],
                "bias": b / 2 * params["out"]["bias"],
            },
        }
        return nnx.merge(self.graph, weights)(x)

    def probabilities(self, params, x):
        return jax.nn.softmax(self.logits(params, x))

    def log_likelihood(self, params, row):
        return jax.nn.log_softmax(self.logits(params, row[0]))[row[1]]

    def draw(self, key, scale: float):
        leaves, tree = jax.tree.flatten(self.template)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(
            tree, [scale * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
        )


def log_prior(params):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def posterior_plan(model: Model, split: Split, seed: int) -> gm.Plan:
    """HFHR on the posterior; also averages observables at one test image and one unseen digit."""
    s = model.settings
    image, digit, strange = split.test[0][0], int(split.test[1][0]), split.unseen[0]
    return gm.Plan(
        target=gm.targets.FiniteSum(model.log_likelihood, log_prior, split.labelled),
        oracle=gm.oracles.Minibatch(s.batch),
        dynamics=gm.dynamics.hfhr(model.template, s.alpha, s.gamma),
        observables={
            f"p({digit}) at a test image, which is a {digit}": gm.observables.predictive(
                image, model.probabilities, digit
            ),
            "Brier score there": gm.observables.brier(image, digit, model.probabilities),
            "entropy there": gm.observables.entropy(image, model.probabilities),
            "entropy at a digit never shown": gm.observables.entropy(strange, model.probabilities),
        },
        step_size=s.step_size,
        num_steps=s.steps,
        burn_in=s.burn_in,
        num_chains=s.chains,
        seed=seed,
        start=lambda key: model.draw(key, 0.1),
        dtype="float32",
    )


def tuned_plan(model: Model, split: Split, seed: int) -> gm.Plan:
    """The same posterior and observables and as many rows of data; the sampler by `gm.tune`."""
    given = posterior_plan(model, split, seed).replace(start=model.draw(jax.random.key(seed), 0.1))
    rows = given.gradients * model.settings.batch / model.settings.labelled
    tuned = gm.tune(given, gradients=rows, num_chains=given.num_chains, seed=seed)
    print(f"split {seed}: {tuned.reason} {' '.join(tuned.warnings)}", file=sys.stderr)
    return tuned.plan


def bayes(model: Model, split: Split, seed: int):
    """Predictive probabilities averaged over chains and kept draws, for test and unseen images, and the run."""
    s = model.settings
    plan = (tuned_plan if s.tuned else posterior_plan)(model, split, seed)
    run = gm.run(plan, "scan", thin=max(1, plan.num_steps * s.thin // s.steps))
    draws = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), run.draws)
    average = jax.jit(lambda p, x: jnp.mean(jax.lax.map(lambda q: model.probabilities(q, x), p), axis=0))
    return np.asarray(average(draws, split.test[0])), np.asarray(average(draws, split.unseen)), run


def train(model: Model, images, digits, scale_out, rate, last, key, validation=None):
    """Adam on the penalised likelihood for `last` epochs: the parameters, and the validation score after every epoch."""
    count, size = len(digits), model.settings.batch

    def score(params, x, y):
        return -jnp.mean(jax.nn.log_softmax(model.logits(params, x, scale_out))[jnp.arange(len(y)), y])

    def loss(params, x, y):
        return score(params, x, y) - log_prior(params) / count

    optimiser = optax.scale_by_adam()

    def step(carry, rows):
        params, memory = carry
        change, memory = optimiser.update(jax.grad(loss)(params, images[rows], digits[rows]), memory)
        return (jax.tree.map(lambda p, c: p - rate * c, params, change), memory), None

    def epoch(carry, now):
        number, key = now
        rows = jax.random.permutation(key, count)[: count // size * size].reshape(-1, size)
        moved, _ = jax.lax.scan(step, carry, rows)
        carry = jax.tree.map(lambda new, old: jnp.where(number < last, new, old), moved, carry)
        return carry, jnp.inf if validation is None else score(carry[0], *validation)

    key_start, key_epochs = jax.random.split(key)
    params, epochs = model.draw(key_start, 0.3), model.settings.epochs
    now = jnp.arange(epochs), jax.random.split(key_epochs, epochs)
    (params, _), scores = jax.lax.scan(epoch, (params, optimiser.init(params)), now)
    return params, scores


@functools.partial(jax.jit, static_argnums=0)
def cross_validate(model: Model, images, digits, grid, key):
    """The held-out log score after every epoch, settings × epochs, averaged over folds; the images are in random order."""
    s = model.settings
    folds = np.arange(s.labelled).reshape(s.folds, -1)
    others = np.array([np.setdiff1d(np.arange(s.labelled), fold) for fold in folds])

    def held_out(setting, rest, fold, key):
        validation = images[fold], digits[fold]
        return train(model, images[rest], digits[rest], setting[0], setting[1], s.epochs, key, validation)[1]

    over_folds = jax.vmap(held_out, (None, 0, 0, 0))
    return jax.vmap(over_folds, (0, None, None, None))(grid, others, folds, jax.random.split(key, s.folds)).mean(1)


@functools.partial(jax.jit, static_argnums=0)
def train_and_predict(model: Model, images, digits, setting, last, key, *places):
    """The network trained on all images from several starts: probabilities at each of the places, starts × images × classes."""

    def one(key):
        params, _ = train(model, images, digits, setting[0], setting[1], last, key)
        return tuple(jax.nn.softmax(model.logits(params, x, setting[0])) for x in places)

    return jax.vmap(one)(jax.random.split(key, model.settings.restarts))


def point(model: Model, split: Split, seed: int):
    """The tuned point estimate from several starts: probabilities for test and unseen images, and what was chosen."""
    s = model.settings
    grid = np.array([(scale, rate) for scale in s.scales for rate in s.rates], np.float32)
    key_folds, key_final = jax.random.split(jax.random.key(seed))
    curves = np.asarray(cross_validate(model, *split.labelled, grid, key_folds))
    best, last = np.unravel_index(int(curves.argmin()), curves.shape)
    places = split.test[0], split.unseen
    test, unseen = train_and_predict(model, *split.labelled, grid[best], int(last) + 1, key_final, *places)
    chosen = dict(zip(("scale_out", "learning_rate"), map(float, grid[best]), strict=True))
    chosen |= {"epochs": int(last) + 1, "held_out_score": float(curves.min())}
    return np.asarray(test), np.asarray(unseen), chosen


def mode(model: Model, split: Split, seed: int):
    """The mode of the posterior that `bayes` samples, from several starts: probabilities for test and unseen images."""
    s = model.settings
    longer = model if s.mode_epochs == s.epochs else Model(dataclasses.replace(s, epochs=s.mode_epochs))
    setting, places = np.array([s.scale_out, s.mode_rate], np.float32), (split.test[0], split.unseen)
    found = train_and_predict(longer, *split.labelled, setting, s.mode_epochs, jax.random.key(seed), *places)
    return tuple(map(np.asarray, found))


def entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=-1)


def measure(p: np.ndarray, unseen: np.ndarray, digits: np.ndarray) -> dict[str, float]:
    """Scores of predictive probabilities; `unseen_auroc`: how well the entropy tells unseen digits from seen ones."""
    p = np.asarray(p, float)
    inside, outside = entropy(p), entropy(np.asarray(unseen, float))
    return {
        "brier": float(np.mean(np.sum((p - np.eye(SEEN)[digits]) ** 2, axis=1))),
        "log_score": float(-np.mean(np.log(np.maximum(p[np.arange(len(digits)), digits], 1e-30)))),
        "accuracy": float(np.mean(p.argmax(1) == digits)),
        "calibration_error": calibration(p, digits)[1],
        "entropy_seen": float(inside.mean()),
        "entropy_unseen": float(outside.mean()),
        "unseen_auroc": float(np.mean(outside[:, None] > inside)),
    }


def calibration(p: np.ndarray, digits: np.ndarray, bins: int = 10):
    """(confidence, accuracy, count) by bins of the confidence, and the expected calibration error."""
    confidence, right = p.max(1), p.argmax(1) == digits
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = [
        (confidence[place == k].mean(), right[place == k].mean(), int(np.sum(place == k))) for k in np.unique(place)
    ]
    return rows, float(sum(n * abs(c - a) for c, a, n in rows) / len(digits))


def compare(seed: int, model: Model) -> dict:
    """Run everything on one split: scores, intervals of the streamed observables, and predictions for the figure."""
    split, began = load(seed, model.settings), time.perf_counter()
    bayes_test, bayes_unseen, run = bayes(model, split, seed)
    sampled = time.perf_counter()
    point_test, point_unseen, chosen = point(model, split, seed)
    digits = split.test[1]

    def over_starts(test, unseen):
        each = [measure(p, u, digits) for p, u in zip(test, unseen, strict=True)]
        return {name: float(np.mean([m[name] for m in each])) for name in each[0]}

    momentum = run.state.z[:, run.plan.dim : 2 * run.plan.dim]
    return {
        "seed": seed,
        "bayes": measure(bayes_test, bayes_unseen, digits),
        "mode": over_starts(*mode(model, split, seed)),
        "point": over_starts(point_test, point_unseen),
        "ensemble": measure(point_test.mean(0), point_unseen.mean(0), digits),
        "chosen_for_the_point_estimate": chosen,
        "momentum_temperature": float(np.mean(momentum**2)),
        "observables": {
            name: {
                "mean": run.mean[name],
                "interval_95": list(run.interval(name)),
                "std_error": run.std_error[name],
                "r_hat": run.r_hat[name],
            }
            for name in run.plan.observables
        },
        "plan": {
            "oracle": run.plan.oracle.name,
            "step_size": run.plan.eta,
            "steps": run.plan.num_steps,
            "burn_in": run.plan.burn_in,
        },
        "seconds": {"bayes": sampled - began, "point": time.perf_counter() - sampled},
        "predictions": (bayes_test, bayes_unseen, point_test, point_unseen, digits),
    }


def summary(results: list[dict]) -> dict:
    """Means over splits with standard errors, and of the paired differences."""

    def mean(values):
        error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        return {"mean": float(np.mean(values)), "std_error": error}

    who = ("bayes", "mode", "point", "ensemble")
    table = {name: {w: mean([r[w][name] for r in results]) for w in who} for name in results[0]["bayes"]}
    for name, row in table.items():
        for other in who[1:]:
            row[f"bayes - {other}"] = mean([r["bayes"][name] - r[other][name] for r in results])
    return table


def figure(results: list[dict], path: Path) -> None:
    """Calibration, entropies, and the scores split by split."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = fig.subplots(1, 3)
    colours = {"Bayes": "#1b5e9c", "tuned point estimate": "#c8641b"}
    predictions = [r["predictions"] for r in results]
    digits = np.concatenate([p[4] for p in predictions])
    test = {"Bayes": [p[0] for p in predictions], "tuned point estimate": [p[2][0] for p in predictions]}
    unseen = {"Bayes": [p[1] for p in predictions], "tuned point estimate": [p[3][0] for p in predictions]}
    test, unseen = ({k: np.concatenate(v) for k, v in both.items()} for both in (test, unseen))
    left.plot([0.2, 1], [0.2, 1], color="0.6", linewidth=1)
    for name, colour in colours.items():
        rows, error = calibration(test[name], digits)
        rows = [row for row in rows if row[2] >= 20]
        left.plot(
            *zip(*[row[:2] for row in rows], strict=True), "o-", color=colour, label=f"{name} (error {error:.3f})"
        )
        middle.hist(entropy(test[name]), bins=30, range=(0, np.log(SEEN)), density=True, histtype="step", color=colour)
        middle.hist(
            entropy(unseen[name]),
            bins=30,
            range=(0, np.log(SEEN)),
            density=True,
            histtype="stepfilled",
            alpha=0.3,
            color=colour,
        )
    left.set(xlabel="confidence", ylabel="accuracy", title="Calibration on test images")
    left.legend(frameon=False)
    middle.plot([], [], color="0.3", label="0 to 7 (line)")
    middle.fill_between([], [], color="0.3", alpha=0.3, label="8 and 9, never shown (filled)")
    middle.set(xlabel="entropy of the prediction", ylabel="density", title="What is unknown")
    middle.legend(frameon=False)
    right.axhline(0, color="0.6", linewidth=1)
    pairs = [(name, other) for other in ("mode", "point") for name in ("brier", "log_score")]
    for x, (name, other) in enumerate(pairs):
        differences = [r["bayes"][name] - r[other][name] for r in results]
        right.scatter(x + np.linspace(-0.1, 0.1, len(results)), differences, color=colours["Bayes"], alpha=0.7)
        right.plot([x - 0.2, x + 0.2], [np.mean(differences)] * 2, color="0.2")
    right.set_xticks(range(4), [f"{n}\n− {o}" for o in ("mode", "tuned") for n in ("Brier", "log score")])
    right.set(title="Bayes minus point estimates, a dot per split", ylabel="below 0: Bayes is better", xlim=(-0.5, 3.5))
    fig.savefig(path, dpi=110)


def report(results: list[dict], settings: Settings) -> str:
    columns = ("bayes", "mode", "point", "ensemble", "bayes - mode", "bayes - point")
    lines = [f"{'':18}" + "".join(f"{name:>18}" for name in columns)]
    for name, row in summary(results).items():
        cells = [
            f"{row[w]['mean']:.4f}" + (f" ± {row[w]['std_error']:.4f}" if row[w]["std_error"] is not None else "")
            for w in columns
        ]
        lines.append(f"{name:18}" + "".join(f"{c:>18}" for c in cells))
    last = results[-1]
    lines.append(
        f"\nsplit {last['seed']}: posterior expectations by HFHR, {settings.chains} chains, with 95 % intervals"
    )
    for name, value in last["observables"].items():
        lines.append(f"  {name:45}{value['mean']:.4f}  [{value['interval_95'][0]:.4f}, {value['interval_95'][1]:.4f}]")
    temperatures = ", ".join(f"{r['momentum_temperature']:.3f}" for r in results)
    lines.append(f"mean r² of the momenta, 1 without discretisation and mini-batch error: {temperatures}")
    return "\n".join(lines)


def store(results: list[dict], settings: Settings, out: Path) -> None:
    """Write digits.json."""
    out.mkdir(parents=True, exist_ok=True)
    plain = [{k: v for k, v in r.items() if k != "predictions"} for r in results]
    about = {"environment": machine(), "settings": dataclasses.asdict(settings)}
    content = {**about, "summary": summary(results), "splits": plain}
    (out / "digits.json").write_text(json.dumps(content, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="how many splits to compare on (default 10)")
    parser.add_argument(
        "--quick", action="store_true", help="one split and short chains: shows that it works, measures nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/digits"), help="folder for digits.json and digits.png"
    )
    for field in dataclasses.fields(Settings):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(
                flag, type=type(field.default), default=field.default, help=f"default {field.default:g}"
            )
    parser.add_argument("--no-figure", action="store_true", help="write no digits.png, which needs Matplotlib")
    parser.add_argument("--tuned", action="store_true", help="let `gm.tune` find the sampler")
    options = vars(parser.parse_args(arguments))
    seeds, quick, out, drawn = (
        options.pop("seeds"),
        options.pop("quick"),
        options.pop("out"),
        not options.pop("no_figure"),
    )
    settings = Settings(**options).quick() if quick else Settings(**options)
    results, model = [], Model(settings)
    for seed in range(1, (1 if quick else seeds) + 1):
        results.append(compare(seed, model))
        store(results, settings, out)  # after every split, so that a run that is stopped leaves what it has
        r = results[-1]
        scores = ", ".join(
            f"{w} {r[w]['brier']:.4f} {r[w]['log_score']:.4f}" for w in ("bayes", "mode", "point", "ensemble")
        )
        print(
            f"split {seed}: Brier and log score: {scores} ({sum(r['seconds'].values()):.0f} s)",
            file=sys.stderr,
            flush=True,
        )
    print(report(results, settings))
    print(f"\n{out / 'digits.json'}")
    if drawn:
        figure(results, out / "digits.png")
        print(out / "digits.png")


if __name__ == "__main__":
    main()
