"""The pieces of a plan file: which kinds there are, what they are made by, and what their arguments are.

Plan files are read by these tables, and the JSON Schema for editors is written from them. The arguments of a kind, which of them
are required and what they mean come from the function that makes the piece and its docstring; `TYPES` says what may stand in a
file for an argument of each name.
"""

import dataclasses
import enum
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from gyromc import data, dynamics, observables, oracles, schemes, targets
from gyromc.checks import numbers
from gyromc.operators import LowRank, Operator
from gyromc.stretches import DiagonalLowRank, Gram
from gyromc.targets import families

__all__ = ["DATA", "KINDS", "PLAN", "TYPES", "PieceKind", "Type", "kind_named"]


class Type(enum.Enum):
    """What may stand in a file; the values are what messages say."""

    NUMBER = "a number"
    WHOLE = "a whole number"
    FLAG = "true or false"
    TEXT = "a text"
    FILE = "the path of a file, from the folder of the plan file on"
    NUMBERS = 'a number, an array of numbers, or {npy = "file.npy"}'
    FUNCTION = 'a function as "module:function"'
    PARAMETERS = "numbers, or a table of them"
    STEP_SIZE = 'a number, or a schedule as "module:function"'
    START = 'numbers, a table of them, or a function as "module:function"'
    OPERATOR = "numbers, or a table with a `kind`"
    CURVATURE = 'numbers, a table with a `kind`, "diagonal" or "matrix-free"'
    SCHEME = "the name of a scheme, or a table with a `kind`"
    TARGET = "a table with a `kind` of target"
    DYNAMICS = "a table with a `kind` of dynamics"
    ORACLE = "a table with a `kind` of oracle"
    OBSERVABLE = "a table with a `kind` of observable"
    OBSERVABLES = "a table of observables, by name"
    LIKELIHOOD = "a table with a `kind` of likelihood"
    GROUPS = "an array of tables with Z, index, num_levels and scale"
    WEIGHTING = "uniform or step_size"
    PRECISION = "float32 or float64"


@dataclasses.dataclass(frozen=True)
class PieceKind:
    """One kind of piece: its name in files, and the function that makes it."""

    name: str
    make: Callable

    @property
    def python_name(self) -> str:
        """The name with capitals, which files may use too."""
        return self.name.title().replace("_", "")

    @functools.cached_property
    def arguments(self) -> dict[str, bool]:
        """The names of the arguments, and whether each is required."""
        found = inspect.signature(self.make).parameters.values()
        return {p.name: p.default is p.empty for p in found if p.kind is not p.VAR_KEYWORD}

    @functools.cached_property
    def about(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.make) or "").split("\n")[0]

    def meaning(self, argument: str) -> str:
        """What the docstring says of an argument."""
        text = inspect.getdoc(self.make) or ""
        for names, words in re.findall(r"^- ((?:`\w+`(?:, )?)+): (.*?)(?=^- |^$|\Z)", text, re.M | re.S):
            if f"`{argument}`" in names:
                return " ".join(words.split())
        return ""


def _kinds(**makers: Callable) -> dict[str, PieceKind]:
    return {name: PieceKind(name, make) for name, make in makers.items()}


def rotations(dim, rate=1.0) -> dynamics.Dynamics:
    """D = I and Q = blockdiag(rate [[0, -1], [1, 0]]), without a matrix.

    **Arguments:**

    - `dim`: the number of parameters; left out: the target's.
    - `rate`: one number, or one for each pair.
    """
    return dynamics.nonreversible(dynamics.rotations(dim, rate))


def streamed_regression(X_file, y_file, family, prior_scale=1.0) -> targets.StreamedRegression:
    """A regression over the rows of two .npy files, which stay on disk.

    **Arguments:**

    - `X_file`: rows × columns, float32 or float64.
    - `y_file`: one number a row.
    - `family`: linear, logistic or poisson.
    - `prior_scale`: σ₀ > 0 of the prior N(0, σ₀² I).
    """
    return targets.StreamedRegression(data.Mapped(X_file, y_file), family, prior_scale)


def gram(scale, basis, gains, factor=1.0) -> Operator:
    """factor · RRᵀ with R = diag(scale)(I + B diag(gains) Bᵀ), in O(nk) memory."""
    parts = numbers(scale, "scale"), numbers(basis, "basis"), numbers(gains, "gains")
    return Gram(DiagonalLowRank(*parts), factor)


def _snake(name: str) -> str:
    """`NegativeBinomial` as `negative_binomial`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


KINDS: dict[Type, Mapping[str, PieceKind]] = {
    Type.TARGET: _kinds(
        quadratic=targets.Quadratic,
        cosine_perturbed=targets.CosinePerturbed,
        separable=targets.Separable,
        linear_regression=targets.LinearRegression,
        logistic_regression=targets.LogisticRegression,
        poisson_regression=targets.PoissonRegression,
        softmax_regression=targets.SoftmaxRegression,
        mixed_regression=targets.MixedRegression,
        streamed_regression=streamed_regression,
        log_density=targets.LogDensity,
        finite_sum=targets.FiniteSum,
    ),
    Type.DYNAMICS: _kinds(
        overdamped=dynamics.overdamped,
        nonreversible=dynamics.nonreversible,
        rotations=rotations,
        hfhr=dynamics.hfhr,
        gaul=dynamics.gaul,
        general=dynamics.general,
    ),
    Type.ORACLE: _kinds(
        exact=oracles.Exact,
        gaussian=oracles.Gaussian,
        minibatch=oracles.Minibatch,
        control_variate=oracles.ControlVariate,
    ),
    Type.OBSERVABLE: _kinds(
        linear=observables.linear,
        square=observables.square,
        tanh=observables.tanh,
        predictive=observables.predictive,
        brier=observables.brier,
        entropy=observables.entropy,
        function=observables.function,
    ),
    Type.SCHEME: _kinds(
        **{name: functools.partial(schemes.find, name) for name in schemes.SCHEMES if name != "balanced"},
        balanced=schemes.balanced,
    ),
    Type.OPERATOR: _kinds(rotations=dynamics.rotations, low_rank=LowRank, gram=gram),
    Type.LIKELIHOOD: _kinds(**{_snake(known.__name__): known for known in families.LIKELIHOODS}),
}
"""The kinds of pieces, by what they are and by name."""

DATA = ("csv", "response", "intercept")
"""What a target may give in place of `X` and `y`: a CSV file, its column of responses, and whether to add a column of ones."""

_BY_TYPE = {
    Type.NUMBER: "beta tau prior_scale alpha gamma a",
    Type.WHOLE: "dim num_classes size order refresh label num_levels num_steps num_chains seed burn_in",
    Type.FLAG: "replace martingale intercept centred",
    Type.TEXT: "csv response family",
    Type.FILE: "X_file y_file",
    Type.NUMBERS: "precision mean X y weights offset known rate u x diagonal factor signs scale basis gains Z index",
    Type.FUNCTION: "potential slope fn log_likelihood log_prior model f",
    Type.PARAMETERS: "data center",
    Type.STEP_SIZE: "step_size",
    Type.START: "start",
    Type.OPERATOR: "J C D Q S preconditioner",
    Type.CURVATURE: "curvature",
    Type.SCHEME: "scheme",
    Type.TARGET: "target",
    Type.DYNAMICS: "dynamics",
    Type.ORACLE: "oracle",
    Type.OBSERVABLES: "observables",
    Type.LIKELIHOOD: "likelihood",
    Type.GROUPS: "groups",
    Type.WEIGHTING: "weighting",
    Type.PRECISION: "dtype",
}
TYPES: dict[str, Type] = {name: kind for kind, names in _BY_TYPE.items() for name in names.split()}
"""What may stand for an argument, by its name: arguments of one name are of one type, wherever they are."""

PLAN: dict[str, bool] = {
    "target": True,
    "dynamics": True,
    "observables": True,
    "step_size": True,
    **dict.fromkeys(("oracle", "num_steps", "num_chains", "seed", "scheme", "start", "burn_in"), False),
    **dict.fromkeys(("weighting", "dtype", "martingale"), False),
}
"""The keys of a plan file, and whether each is required."""


def kind_named(given: Any, among: Mapping[str, PieceKind]) -> PieceKind | None:
    """The kind of a name; `LinearRegression`, as in Python, is `linear_regression`."""
    names = {name.replace("_", ""): kind for name, kind in among.items()}
    return names.get(str(given).replace("_", "").lower())
