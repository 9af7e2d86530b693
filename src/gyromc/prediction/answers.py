"""What `predict` answers for one observable: numbers with their errors, and the method behind each."""

import dataclasses
import enum
import math
from typing import NamedTuple

RESOLVED = 1e-11  # no integral is claimed to be more exact


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
        """± and the error."""
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


class Reduction(NamedTuple):
    """Whether the rotation Q strictly lowers V: the integral decides, or V and V_0 where it is not known."""

    strict: bool
    integral: float
    ratio: float  # V / V_0

    def __bool__(self) -> bool:
        return self.strict


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is predicted for one observable; what is not known is NaN or None."""

    variance: float = math.nan  # V
    reversible_variance: float = math.nan  # V_0
    method: Method = UNKNOWN
    variance_error: float = math.nan  # of V: 0 where it is exact to rounding
    reversible_variance_error: float = math.nan  # of V_0
    strictness: float = math.nan  # ∫|⟨Q∇H, ∇φ₀⟩|²dμ, 0 for rounding
    expectation: float | None = None  # μ(h)
    expectation_method: Method = UNKNOWN
    expectation_error: float = math.nan
    bias: float | None = None  # of one chain's average
    bias_method: Method = UNKNOWN
    bias_error: float = 0.0  # of the bias: 0 where it is exact
    start_counted: bool = False  # whether bias and error contain the effect of the start
    std: float = math.nan  # of one chain's average
    std_uncertainty: float = math.nan  # the error of `std`: 0 where it is exact
    plain_std: float = math.nan  # the same without its martingale, where one is subtracted
    rmse_method: Method = UNKNOWN
    notes: tuple[str, ...] = ()
    num_chains: int = 1  # of the plan

    @property
    def strict_reduction(self) -> Reduction | None:
        """Whether V < V_0 strictly; None where V is not known."""
        V, V_0 = self.variance, self.reversible_variance
        if math.isnan(V):
            return None
        apart = V + self.variance_error < V_0 - self.reversible_variance_error
        strict = apart if math.isnan(self.strictness) else self.strictness > 0
        return Reduction(strict, self.strictness, V / V_0 if V_0 > 0 else 1.0)

    @property
    def mean(self) -> float:
        """The expected value of an average: μ(h) plus the bias; NaN where either is unknown."""
        return math.nan if self.expectation is None or self.bias is None else self.expectation + self.bias

    @property
    def rmse(self) -> float:
        """The root mean squared error of one chain's average about μ(h); an unknown bias counts as none."""
        return math.hypot(self.bias or 0.0, self.std)

    @property
    def gain(self) -> float:
        """How many times longer a run without the martingale takes for the same error; infinite where that leaves no error."""
        if math.isnan(self.plain_std):
            return 1.0
        return math.inf if self.std == 0 else (self.plain_std / self.std) ** 2

    @property
    def std_error(self) -> float:
        """The standard deviation of the mean over all chains of the plan."""
        return self.std / math.sqrt(self.num_chains)

    def biased(self, bias: float, error: float, how: Method, start_counted: bool = True) -> "Answer":
        """The answer with the bias of one chain's average."""
        return dataclasses.replace(self, bias=bias, bias_error=error, bias_method=how, start_counted=start_counted)

    def varying(self, variance: float, error: float, how: Method) -> "Answer":
        """The answer with the standard deviation of one chain's average, from the variance and the error of that."""
        std = math.sqrt(variance)
        of_root = error / (2 * std) if error < variance else math.sqrt(variance + error) - std
        return dataclasses.replace(self, std=std, std_uncertainty=of_root, rmse_method=how)

    def noting(self, *notes: str) -> "Answer":
        """The answer with more notes."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))
