"""Methods by which a predicted number is known: a kind that code can test, and the text that users read; numbers with errors."""

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """A way to know V, μ(h), the bias or the error; the value is its text where no numbers are added to it."""

    CLOSED_FORM = "closed form"
    MEHLER = "closed form (mehler)"
    GALERKIN = "galerkin"
    QUADRATURE = "quadrature"
    PLUG_IN = "plug-in"
    SAMPLE = "sample"
    LAPLACE = "laplace"
    EXACT = "exact finite-step"
    LAW = "finite-step law"
    GAUSSIAN_LAW = "finite-step law, Gaussian with exact second moments"
    GRID = "the chain on a grid"
    FIRST_ORDER = "first order in η"
    SECOND_ORDER = "second order in η, not known"
    MARTINGALE = "what the martingale leaves"
    NO_NOISE = "unknown: the scheme cannot draw its noise for this plan"
    ASYMPTOTIC = "asymptotic"
    UNSTABLE = "unstable: second moments grow without bound"
    UNKNOWN = "unknown"


class Number(NamedTuple):
    """A computed number and a bound on its error."""

    value: float
    error: float

    @property
    def shown(self) -> str:
        """±, the error and its share of the number."""
        return f"±{self.error:.1g}".replace("e-0", "e-").replace("e+0", "e+")


class Method(str):
    """The text of a method, with its `kind`."""

    kind: Kind

    def __new__(cls, kind: Kind, text: str | None = None) -> "Method":
        """The method of that kind; its text is the kind's own unless another is given."""
        method = super().__new__(cls, kind.value if text is None else text)
        method.kind = kind
        return method

    def __reduce__(self) -> tuple[type["Method"], tuple[Kind, str]]:
        return Method, (self.kind, str(self))

    @property
    def exact(self) -> bool:
        """Whether the number has no error but rounding, at the plan's own step size and number of steps."""
        return self.kind in (Kind.EXACT, Kind.LAW)


UNKNOWN = Method(Kind.UNKNOWN)
