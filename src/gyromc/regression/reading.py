"""What a user passes to `fit`, read and checked: X, y and all that belongs to their rows, the family, and names.

Arrays and texts in; a `Problem` out, whose values fit each other, or an `InvalidInput` that says what to change.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gyromc.checks import numbers, one_of, require, shown
from gyromc.errors import InvalidInput
from gyromc.regression.terms import GroupTerm, Prior, read_groups, read_priors
from gyromc.targets.families import BetaBinomial, Binomial, Gamma, NegativeBinomial, Ordinal, StudentT
from gyromc.targets.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson

__all__ = ["FAMILIES", "Problem", "read"]

FAMILIES = (
    "linear",
    "student-t",
    "logistic",
    "softmax",
    "ordinal",
    "poisson",
    "negative-binomial",
    "gamma",
    "binomial",
    "beta-binomial",
)
CLASSES = ("logistic", "softmax", "ordinal")  # families whose y is a class
COUNTS = ("poisson", "negative-binomial", "binomial", "beta-binomial")
OF_TRIALS = ("binomial", "beta-binomial")  # counts of successes


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A regression as the user poses it, checked.

    **Attributes:**

    - `family`, `likelihood`: the model of y; `X`, `y`: the data; `names`, `classes`: of the columns and of y's values.
    - `intercept`: whether there is one; `prior_scale`, `priors`: of the coefficients, and those that differ.
    - `offset`, `weights`: of the rows, or None; `known`: what the likelihood is given for every row.
    - `groups`: `GroupTerm`s.
    """

    family: str
    likelihood: Likelihood
    X: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    intercept: bool
    prior_scale: float
    priors: dict[str, Prior]
    offset: np.ndarray | None = None
    weights: np.ndarray | None = None
    known: tuple[np.ndarray, ...] = ()
    groups: tuple[GroupTerm, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether coefficients are all there is to sample."""
        beside = self.likelihood.auxiliary or self.known or self.groups or self.weights is not None
        moved = self.offset is not None or any(p.location for p in self.priors.values())
        return not (beside or moved)


def read(X, y, family: str, *, names, classes, intercept: bool, prior_scale: float, **beside: Any) -> Problem:
    """The problem that a user's arguments pose."""
    one_of(family, FAMILIES, "family")
    names, classes = _texts(names, "names"), _texts(classes, "classes")
    X, y = numbers(X, "X"), numbers(y, "y")
    require(X.ndim == 2 and X.shape[0] > 0, f"`X` must be a matrix with one row per observation: got shape {X.shape}.")
    require(y.shape == X.shape[:1], f"`y` must have one entry per row of `X` ({X.shape[0]}): got shape {y.shape}.")
    trials = _of_rows(beside["trials"], "trials", len(X))
    _check_response(y, family, trials)
    likelihood = _likelihood(y, family, None if classes is None else len(classes))
    columns, values = _labels(X, names, likelihood, classes)
    groups = read_groups(beside["groups"], len(X))
    require(not groups or family != "softmax", "Groups are not available for the family softmax: leave `groups` out.")
    weights, offset = _of_rows(beside["weights"], "weights", len(X)), _of_rows(beside["offset"], "offset", len(X))
    if weights is not None:
        require(weights.min() >= 0 and weights.max() > 0, "`weights` must not be negative, and some must be positive.")
    require(offset is None or family != "softmax", "`offset` is not available for the family softmax: leave it out.")
    priors = read_priors(beside["priors"], columns, groups)
    located = any(prior.location for prior in priors.values())
    require(not located or family != "softmax", "Priors of the family softmax have a scale only, no location.")
    return Problem(
        family=family,
        likelihood=likelihood,
        X=X,
        y=y,
        names=columns,
        classes=values,
        intercept=intercept and family != "ordinal",  # the cutpoints of an ordinal model are its intercepts
        prior_scale=prior_scale,
        priors=priors,
        offset=offset,
        weights=weights,
        known=() if trials is None else (trials,),
        groups=groups,
    )


def _of_rows(values, name: str, num_rows: int) -> np.ndarray | None:
    """A number for each row, or None."""
    if values is None:
        return None
    values = numbers(values, name)
    fits = values.shape == (num_rows,)
    require(fits, f"`{name}` must have one entry per row of `X` ({num_rows}): got shape {values.shape}.")
    return values


def _check_response(y: np.ndarray, family: str, trials: np.ndarray | None) -> None:
    """Refuse responses that the family cannot have."""
    require(
        (trials is not None) == (family in OF_TRIALS),
        f"The family {family} needs `trials`, the number of trials of each row."
        if trials is None
        else f"`trials` is for the families {' and '.join(OF_TRIALS)}: got it with {family}.",
    )
    if family in COUNTS or family in ("ordinal", "softmax"):
        what = "counts 0, 1, 2, …" if family in COUNTS else "classes 0, 1, 2, …"
        _refuse((y < 0) | (y != np.round(y)), y, f"`y` must hold {what}", "Encode them as whole numbers.")
    if family == "gamma":
        remedy = "Leave these rows out, or take the family linear."
        _refuse(~(y > 0), y, "`y` must be positive for the family gamma", remedy)
    if family == "logistic":
        _refuse((y != 0) & (y != 1), y, "`y` must be 0 or 1", "Encode the positive class as 1.")
    if trials is not None:
        odd = (trials < y) | (trials < 1) | (trials != np.round(trials))
        _refuse(odd, trials, "`trials` must be whole numbers of at least 1 and at least `y`", "Correct these rows.")
    if family in CLASSES:
        require(
            np.unique(y).size >= 2,
            f"`y` must hold at least two classes: every row is {y[0]:g}. There is nothing to tell apart.",
        )


def _refuse(odd: np.ndarray, values: np.ndarray, rule: str, remedy: str) -> None:
    """Raise where a rule is broken, naming the first row."""
    places = np.flatnonzero(odd)
    if places.size:
        first = places[0]
        raise InvalidInput(f"{rule}: row {first} has {values[first]:g} ({places.size} rows differ). {remedy}")


def _likelihood(y: np.ndarray, family: str, num_classes: int | None) -> Likelihood:
    if family in ("softmax", "ordinal"):
        seen = int(y.max()) + 1
        count = seen if num_classes is None else num_classes
        require(count >= seen, f"`y` holds class {seen - 1}, but `classes` names {count}: classes are counted from 0.")
        return Categorical(count) if family == "softmax" else Ordinal(count)
    kinds = {
        "linear": Normal,
        "student-t": StudentT,
        "logistic": Bernoulli,
        "poisson": Poisson,
        "negative-binomial": NegativeBinomial,
        "gamma": Gamma,
        "binomial": Binomial,
        "beta-binomial": BetaBinomial,
    }
    return kinds[family]()


def _texts(given, name: str) -> list[str] | None:
    """A list of names or classes as texts."""
    if given is None:
        return None
    given = given.tolist() if hasattr(given, "tolist") else given
    require(
        isinstance(given, Sequence) and not isinstance(given, str | bytes),
        f"`{name}` must be a list of texts: got {shown(given)}.",
    )
    plain = isinstance(given, Sequence) and all(isinstance(text, str | int | float) for text in given)
    require(plain, f"`{name}` must be texts or numbers: got {shown(given)}.")
    return [str(text) for text in given]


def _labels(X: np.ndarray, names, likelihood: Likelihood, classes) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Names of columns and classes."""
    names = [f"x{j}" for j in range(X.shape[1])] if names is None else names
    require(
        len(names) == X.shape[1], f"`names` must have one entry per column of `X` ({X.shape[1]}): got {len(names)}."
    )
    if isinstance(likelihood, Categorical | Bernoulli | Ordinal):
        count = 2 if isinstance(likelihood, Bernoulli) else likelihood.num_classes
        classes = [str(c) for c in range(count)] if classes is None else classes
        require(len(classes) == count, f"`classes` must name the {count} values of `y`: got {len(classes)}.")
        return tuple(names), tuple(classes)
    require(classes is None, "`classes` is for a logistic, softmax or ordinal model.")
    return tuple(names), None
