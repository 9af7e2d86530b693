"""Whether the model fits, in sentences: what each check found, what to try, and the command that does so."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gyromc.regression.adequacy.assess import FAIR, assess, figure_numbers, ordered
from gyromc.regression.adequacy.checks import Aspect, ModelCheck, ModelVerdict
from gyromc.regression.fit import Fit
from gyromc.show.numbers import counted, listed, number, plain
from gyromc.show.records import plain_attributes
from gyromc.tables.datatable import DataTable, as_numbers
from gyromc.tables.encoding import CategoricalColumn, Encoding
from gyromc.tables.preparation import Prepared
from gyromc.tables.request import Request
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import ResponseKind

EVEN, ZEROS = "conway-maxwell-poisson", "zero-inflated-poisson"  # families for even counts, and for many zeros
MOST_TERMS = 12  # of a formula that is written out
MOST_ROWS, ROWS_NAMED = 5, 20  # that sentences name, and that fit.json does
HEAVY_TAILS = 1.0  # excess kurtosis of residuals: 1.2 for a t law with nine degrees of freedom
SKEWED = 0.25  # `_skewness` of residuals: 0.55 for an exponential law
DIRECTIONS = {
    "high": "responses are higher than predicted",
    "low": "responses are lower than predicted",
    "narrow": "predictive distributions are too narrow",
    "wide": "predictive distributions are too wide",
    "skewed": "responses are more skewed than predicted",
    "tails": "the tails differ from those predicted",
}


def _backticked(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`"


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What sentences name: columns, options, places of rows, how residuals are spread; the check of a column left out."""

    encoding: Encoding
    table: DataTable
    request: Request
    positive: bool
    kurtosis: float = 0.0
    skewness: float = 0.0
    heavy: bool = False  # far out on both sides more often than a normal law
    left_out: ModelCheck | None = None

    @property
    def family(self) -> Any:
        return FAMILIES[self.encoding.response.model]

    @property
    def multiplied(self) -> bool:
        """Whether noise seems to multiply a positive response of a linear model: then a logarithm helps."""
        return self.skewness > SKEWED and self.positive and self.encoding.response.model == "linear"

    def places(self, rows: Sequence[int]) -> str:
        """The places in the file of some rows: "lines 17, 20 and 3 more"."""
        lines = list(dict.fromkeys(str(self.table.lines[row]) for row in rows))  # a row may stand for many observations
        return f"{self.table.unit}{'s' if len(lines) > 1 else ''} {listed(lines, MOST_ROWS)}"

    def command(self, **changes: Any) -> str:
        return dataclasses.replace(self.request, **changes).command

    def wide(self, text: str, remedy: str = "Use a family with a free variance.") -> "Advice":
        """The advice to take the wider family where there is one; of numbers only where the tails are heavy."""
        if not (self.heavy or self.family.response is not ResponseKind.NUMBERS) or self.family.wider is None:
            return Advice(text)
        return Advice(text, remedy, self.command(family=self.family.wider))

    def robust(self, text: str) -> "Advice":
        return Advice(text, "Compare with robust standard deviations.", self.command(robust=True))

    def logarithm(self, text: str) -> "Advice":
        command = self.formula(target=lambda name: f"log({name})") or self.command(family="gamma")
        return Advice(text, f"Take the logarithm of {self.encoding.response.name}.", command)

    def without(self, name: str) -> str | None:
        """The command without the column of the file that a column of X comes from; None where an option cannot say so."""
        source = _source(self.encoding, name)
        made = {part for date in self.encoding.dates for part in date.outputs}
        refused = self.request.formula is not None or self.request.columns or source in made
        return None if refused else self.command(drop=[*self.request.drop, source])

    def formula(
        self, extra: str = "", change: Callable[[str], str] = _backticked, target: Callable[[str], str] = str
    ) -> str | None:
        """The command with a formula that changes some columns and adds a term; None where that cannot be written out."""
        design, more = self.encoding.formula, f" + {extra}" if extra else ""
        if design is not None:
            left, _, right = (part.strip() for part in design.text.partition("~"))
            for name in {n for n in self.encoding.sources.values() if change(n) != _backticked(n)}:
                right = re.sub(rf"(?<![\w.`(,]){re.escape(_backticked(name))}(?![\w.`(])", change(name), right)
            changed = f"{target(left)} ~ {right}{more}"
            return self.command(formula=changed) if changed != design.text else None
        if len(self.encoding.features) > MOST_TERMS:
            return None
        numeric = lambda one: not isinstance(one, CategoricalColumn)
        terms = [change(one.name) if numeric(one) else _backticked(one.name) for one in self.encoding.features]
        changed = f"{target(_backticked(self.encoding.response.name))} ~ {' + '.join(terms)}{more}"
        # A formula says itself which columns it uses.
        return self.command(formula=changed, target=None, columns=[], drop=[])


class Advice(NamedTuple):
    """What was found, what to try, a command that does so; `lasting`: also for a deviation too small to matter."""

    sentence: str
    remedy: str = ""
    command: str | None = None
    lasting: bool = False


def headline(checks: Sequence[dict[str, Any]]) -> str:
    """One sentence on whether the model fits, from the checks of fit.json."""
    wrong = [check for check in checks if check["verdict"] == ModelVerdict.MISFIT.value]
    look = [check["name"] for check in checks if check["verdict"] == ModelVerdict.LOOK.value]
    if wrong:
        names = f" Failed checks: {', '.join(check['name'] for check in wrong)}." if len(wrong) > 1 else ""
        return f"The model does not fit: {wrong[0]['sentence']}{names}"
    unchecked = [check["sentence"] for check in checks if check["name"] == Aspect.WEIGHTS.value]
    if unchecked:
        return f"The model was not checked: {unchecked[0]}"
    others = f"; look at {', '.join(look)}." if look else "."
    return f"No problem found, in {counted(len(checks), 'check')}{others}"


def _chance(check: ModelCheck) -> str:
    """p after the correction for all checks, in brackets; below what replicates can show, as a bound."""
    if check.p is None or check.adjusted is None:
        return ""
    bound = check.p < 1.001 * check.details.get("least", 0.0)
    return " (p < 0.001)" if check.adjusted < 0.001 else f" (p {'<' if bound else '='} {number(check.adjusted, 2)})"


def _share(check: ModelCheck) -> str:
    return f"{number(100 * check.statistic, 2)} % of the residual variance"


def _weights(check: ModelCheck, setting: Setting) -> Advice:
    text = f"a weight is {number(check.statistic)}, not a whole number of observations: its row's variance is unknown"
    text = f"{text}. Dispersion, linearity, variance, calibration, coverage, outliers, interactions were not checked."
    return Advice(text, "Check the model without weights, or with whole numbers of observations.")


def _separation(check: ModelCheck, setting: Setting) -> Advice:
    columns, more = check.details["columns"], check.details.get("more", 0)
    split = "marks rows with counts of zero only" if not setting.encoding.response.classes else "separates the classes"
    if not columns:
        return Advice(f"no linear combination of columns {split}.")
    names = f"{', '.join(columns)}{f' and {more} more' if more else ''}"
    text = f"a linear combination of {names} {split} perfectly in {100 * check.statistic:.0f} % of the rows: the prior, and not"
    text = f"{text} the data, determines how large these coefficients are."
    return Advice(text, "Compare with another prior.", setting.command(prior_scale=1))


def _dispersion(check: ModelCheck, setting: Setting) -> Advice:
    ratio, law, target = check.statistic, setting.family.words.law, setting.encoding.response.name
    text = f"Pearson's χ² per degree of freedom is {number(ratio)}; 1 is expected{_chance(check)}"
    if check.verdict is ModelVerdict.FINE:
        return Advice(f"{text}.")
    if ratio < 1:
        return _too_even(f"{text}: {target} varies less than {law} does, and intervals are too wide.", setting)
    text = f"{text}: {target} varies more than {law} does, and intervals are too narrow."
    if setting.left_out is not None:
        name, share = setting.left_out.details["name"], _share(setting.left_out)
        remedy = f"Add {name}, which the model leaves out and which would explain {share}."
        return Advice(text, remedy, setting.formula(_backticked(name)))
    if check.details["zeros"] and setting.encoding.response.model == "poisson":
        return Advice(text, "Zeros are too many: give them a share of their own.", setting.command(family=ZEROS))
    advice = setting.wide(text)
    return advice if advice.remedy else Advice(text, "A column may be missing, or rows may belong to groups.")


def _too_even(text: str, setting: Setting) -> Advice:
    if "trials" in setting.family.known:
        return Advice(text, "Are the trials of a row alike, or are its successes limited in another way?")
    remedy = "Use a family for even counts; of successes among trials, pass the number of these with `--trials`."
    return Advice(text, remedy, setting.command(family=EVEN))


def _dependence(check: ModelCheck, setting: Setting) -> Advice:
    kind, name, lag = check.details["kind"], check.details["name"], check.details["lag"]
    small = "" if check.large else SMALL
    if kind == "order":
        text = f"residuals of neighbouring rows have the correlation {number(lag, 2)}{_chance(check)}.{small}"
        remedy = "If rows follow each other in time, add what changes with it; if they come in groups, name those: (1 | group)."
        return Advice(text, remedy, lasting=True)
    share, quoted = _share(check), _backticked(name)
    if kind == "column":
        text = f"{name}, which the model leaves out, would explain {share}{_chance(check)}."
        return Advice(text, f"Add {name}.", setting.formula(quoted), lasting=True)
    text = f"rows of one {name} are alike: it would explain {share}; intervals are too narrow{_chance(check)}.{small}"
    if setting.family.vector:
        return Advice(text, f"Add {name}.", setting.formula(f"C({quoted})"), lasting=True)
    command = setting.formula(f"(1 | {quoted})")
    return Advice(text, f"Give each {name} its own intercept: (1 | {quoted}).", command, lasting=True)


def _link(check: ModelCheck, setting: Setting) -> Advice:
    than = "faster than the logistic link allows: another link would explain"
    text = f"probabilities approach {int(check.details['steeper'])} {than} {_share(check)}{_chance(check)}."
    classes = setting.encoding.response.classes
    if not classes:
        return Advice(text, MISSING)
    # reversed, the complementary log-log link is steep towards 0
    positive = classes[-1] if check.details["steeper"] else classes[0]
    command = setting.command(family="cloglog", positive=positive)
    return Advice(text, f"Use the complementary log-log link of {positive!r}.", command)


def _proportional(check: ModelCheck, setting: Setting) -> Advice:
    text = f"{check.details['column']} does not change the odds of all higher classes alike{_chance(check)}."
    return Advice(text, "Give every class its own coefficients.", setting.command(family="softmax", order=None))


def _curvature(check: ModelCheck, setting: Setting) -> Advice:
    columns = check.details["columns"] or [check.details["best"]]
    text = f"a curve in {columns[0]} would explain {_share(check)}{_chance(check)}"
    text += f"; curves in {', '.join(columns[1:4])} too." if len(columns) > 1 else "."
    source = str(setting.encoding.sources.get(columns[0], columns[0]))
    basis = re.fullmatch(r"(bs|ns|poly)\((.+?), (?:\w+=)?(\d+)\)", source)
    if basis and setting.encoding.formula is not None:  # a curve already: with more columns it bends more
        finer = f"{basis[1]}({basis[2]}, {2 * int(basis[3])})"
        changed = setting.encoding.formula.text.replace(source, finer)
        command = setting.command(formula=changed) if finer in changed else None
        return Advice(text, f"Let the curve bend more: {finer}.", command)
    plain = [name for name in columns if name == setting.encoding.sources.get(name, name)]
    if not plain:
        return Advice(text, "Let it be curved in another way.")
    command = setting.formula(change=lambda name: f"bs({_backticked(name)}, 4)" if name in plain else _backticked(name))
    return Advice(text, f"Give {plain[0]} a curve: bs({_backticked(plain[0])}, 4) in a formula.", command)


def _spread(check: ModelCheck, setting: Setting) -> Advice:
    response = setting.encoding.response
    where = f"where predictions of {response.name} are {check.details['where']} as where they vary least"
    text = f"residuals vary {number(check.statistic, 2)} times as much {where}{_chance(check)}."
    if setting.positive and check.details["where"] == "high" and response.model == "linear":
        return Advice(text, "Use a family whose variance grows with the mean.", setting.command(family="gamma"))
    return setting.robust(text)


def _calibration(check: ModelCheck, setting: Setting) -> Advice:
    if "gap" in check.details:
        gap = check.details["gap"]
        text = f"in some rows a class is {abs(100 * gap):.0f} points {'more' if gap > 0 else 'less'} frequent than predicted"
        return Advice(f"{text}{_chance(check)}.", MISSING)
    direction = check.details["direction"]
    text = f"{DIRECTIONS[direction]}{_chance(check)}."
    counts = setting.family.response is ResponseKind.COUNTS
    if direction == "wide" and counts:
        return _too_even(text, setting)
    if setting.encoding.response.model != "linear":
        wider = setting.family.wider
        if wider is not None:
            return Advice(text, "Use a family with a free variance.", setting.command(family=wider))
        return Advice(text, "Compare with other families.", setting.command(family="auto"))
    skewed = direction == "skewed" or abs(setting.skewness) > SKEWED
    if setting.multiplied or (direction == "skewed" and setting.positive and setting.skewness > 0):
        return setting.logarithm(text)
    if setting.heavy and not skewed:
        return Advice(text, "Use a family with heavy tails.", setting.command(family="student-t"))
    if setting.kurtosis < -HEAVY_TAILS / 2:
        return Advice(text, "Residuals have two humps: a column that tells two kinds of rows apart may be missing.")
    return setting.robust(text)


def _coverage(check: ModelCheck, setting: Setting) -> Advice:
    level, rows = 100 * check.details["level"], check.details["rows"]
    text = f"{level:.0f} % predictive intervals contain {100 * check.statistic:.0f} % of {rows} held-out rows{_chance(check)}."
    return setting.wide(text, "Use a family with wider intervals.") if check.large else Advice(text, lasting=True)


def _outliers(check: ModelCheck, setting: Setting) -> Advice:
    rows = check.details["rows"]
    if check.verdict is ModelVerdict.FINE:
        return Advice(f"none; the most extreme row is {setting.places([check.details['row']])}{_chance(check)}.")
    text = f"{counted(len(rows), 'row')} {'is' if len(rows) == 1 else 'are'} too extreme: {setting.places(rows)}."
    if setting.multiplied and len(rows) > 1:
        return setting.logarithm(text)
    if check.details["many"]:
        return setting.wide(f"{text} With so many, doubt the family, not the rows.", "Use a family with heavier tails.")
    them = ("this row", "it") if len(rows) == 1 else ("these rows", "them")
    advice = setting.wide(text, f"Check {them[0]}; then allow for {them[1]}.")
    return advice if advice.remedy else Advice(text, f"Check {them[0]}.")


def _interactions(check: ModelCheck, setting: Setting) -> Advice:
    pairs, tried = check.details["pairs"], check.details["tried"]
    if check.verdict is ModelVerdict.FINE or not pairs:
        several = f"none of {tried} products of two columns explains"
        those = "the product of two columns does not explain" if tried == 1 else several
        return Advice(f"{those} the residuals{_chance(check)}.")
    text = f"{listed([f'{a} × {b}' for a, b in pairs], 3)} would explain {_share(check)}{_chance(check)}."
    product = ":".join(_backticked(_source(setting.encoding, name)) for name in pairs[0])
    return Advice(text, f"Try the interaction {product}.", setting.formula(product), lasting=True)


def _influence(check: ModelCheck, setting: Setting) -> Advice:
    rows, size = check.details["rows"], number(check.statistic, 2)
    if not rows:
        return Advice(f"none: Pareto's k is at most {size} ({setting.places([check.details['row']])}; 0.7 is allowed).")
    text = f"without {setting.places(rows)} the coefficients would change (Pareto's k up to {size}; 0.7 is allowed)."
    them = ("this row", "it") if len(rows) == 1 else ("these rows", "them")
    return Advice(text, f"Check {them[0]}, and compare with a fit without {them[1]}.")


def _collinearity(check: ModelCheck, setting: Setting) -> Advice:
    columns, size = check.details["columns"], number(check.statistic)
    condition = f"(condition number {number(check.details['condition'])})"
    if not columns:
        return Advice(f"collinearity multiplies the variance of a coefficient by at most {size} {condition}.")
    times = "exactly" if check.details["exact"] else f"which multiplies variances by up to {size}"
    which = "it" if len(columns) == 1 else "each of them"
    text = f"{listed(columns, 4)}: other columns determine {which}, {times} {condition}."
    remedy = "Read these coefficients together, not one by one; or leave one out."
    return Advice(text, remedy, setting.without(columns[0]))


def _source(encoding: Encoding, name: str) -> str:
    return next((feature.name for feature in encoding.features if name in feature.outputs), name)


SMALL = " That is clear, but small."
MISSING = "A column, a curve or an interaction may be missing."
WORDS: dict[Aspect, tuple[str, Callable[[ModelCheck, Setting], Advice]]] = {
    Aspect.WEIGHTS: ("", _weights),
    Aspect.SEPARATION: ("", _separation),
    Aspect.DISPERSION: ("", _dispersion),
    Aspect.DEPENDENCE: ("residuals are related neither to neighbouring rows nor to columns left out", _dependence),
    Aspect.LINK: ("probabilities rise as the logistic link says", _link),
    Aspect.PROPORTIONAL: ("every column changes the odds of all higher classes alike", _proportional),
    Aspect.CURVATURE: ("no curve explains the residuals", _curvature),
    Aspect.SPREAD: ("residuals vary as much for low predictions as for high ones", _spread),
    Aspect.CALIBRATION: ("responses follow their predictive distributions", _calibration),
    Aspect.COVERAGE: ("", _coverage),
    Aspect.OUTLIERS: ("", _outliers),
    Aspect.INTERACTIONS: ("", _interactions),
    Aspect.INFLUENCE: ("", _influence),
    Aspect.COLLINEARITY: ("", _collinearity),
}
"""What is said where nothing was found, empty where there is a number then too; and the function that words anything else."""
OF_CLASSES = "class frequencies match the predictions in every group of rows"


def _written(check: ModelCheck, setting: Setting) -> dict[str, Any]:
    """A check as fit.json has it. What is clear but too small to matter gets no advice, unless it is a suggestion anyway."""
    fine, (nothing, words) = check.verdict is ModelVerdict.FINE, WORDS[check.aspect]
    if fine and nothing:
        among = f", in {counted(check.details['tried'], 'column')}" if check.aspect is Aspect.CURVATURE else ""
        advice = Advice(f"{OF_CLASSES if 'gap' in check.details else nothing}{among}{_chance(check)}.")
    else:
        advice = words(check, setting)
    if not fine and not check.large and not advice.lasting:
        advice = Advice(advice.sentence + SMALL)
    rows = check.details["rows"] if check.aspect in (Aspect.OUTLIERS, Aspect.INFLUENCE) else []
    lines = list(dict.fromkeys(setting.table.lines[rows].tolist()))[:ROWS_NAMED] if rows else []
    numbers = {"statistic": plain(check.statistic), "p": plain(check.p), "p_adjusted": plain(check.adjusted)}
    try_it = {"remedy": "" if fine else advice.remedy, "command": None if fine else advice.command}
    about = {"name": check.aspect.value, "verdict": check.verdict.value, **numbers}
    return {**about, "sentence": advice.sentence, **try_it, "lines": lines}


def _skewness(z: np.ndarray) -> float:
    """The mean of (q₁₋ₚ + qₚ - 2 q₅₀)/(q₁₋ₚ - qₚ) over shares p with five rows or more in a tail: one row does not decide."""
    shares = np.array([0.1, *(p for p in (0.05, 0.025) if p * z.size >= 5)])
    low, high, middle = np.quantile(z, shares), np.quantile(z, 1 - shares), np.median(z)
    return float(np.mean((high + low - 2 * middle) / np.maximum(high - low, 1e-300)))


def adequacy(fit: Fit, prepared: Prepared, held_out: dict[str, Any] | None, request: Request) -> dict[str, Any]:
    """Return the part of fit.json on whether the model fits; `request`: what made the fit."""
    encoding, rows, y = prepared.encoding, prepared.rows, prepared.y
    further = []
    if held_out is not None and held_out["coverage"]:
        covered = held_out["coverage"]
        further.append(ModelCheck(Aspect.COVERAGE, covered["share"], covered["p"], covered["large"], details=covered))
    # The first column of dates puts the rows into their order.
    days = [f"{date.name}_days" for date in encoding.dates if f"{date.name}_days" in prepared.table.columns]
    order = as_numbers(prepared.table.columns[days[0]])[0] if days else None
    given = {"names": encoding.names, "sources": list(encoding.sources.values()), "beside": rows.beside()}
    given |= {"weights": rows.weights, "order": order, "unused": prepared.unused}
    found = assess(fit.posterior, rows.X, y, further=further, **given)
    z = found.outputs[0].values
    kurtosis = float(np.mean((z - z.mean()) ** 4) / max(float(z.var()) ** 2, 1e-300)) - 3
    skewness = _skewness(z)
    shape = (
        bool(np.min(y) > 0) and not encoding.response.classes,
        kurtosis,
        skewness,
        kurtosis > HEAVY_TAILS and abs(skewness) <= SKEWED,
    )
    of_columns = lambda check: check.aspect is Aspect.DEPENDENCE and check.details["kind"] == "column"
    clear = (check for check in found.checks if check.verdict is not ModelVerdict.FINE and check.statistic > FAIR)
    setting = Setting(encoding, prepared.table.take(found.rows), request, *shape, next(filter(of_columns, clear), None))
    checks = [_written(check, setting) for check in ordered(found)]
    loo, sampled, loo_r_squared = found.loo, found.y, None
    ends, total = np.quantile(found.r_squared, [0.025, 0.975]), float(np.sum((sampled - sampled.mean()) ** 2))
    # 1 - Σ(y - ŷ)²/Σ(y - ȳ)², ŷ predicted without the row, for at most two classes.
    if found.law.mean.ndim <= 2 and total > 0:
        left_out = np.sum(np.exp(loo.log_weights) * found.law.mean, axis=0)
        loo_r_squared = plain(1 - float(np.sum((sampled - left_out) ** 2)) / total)
    said = {"verdict": found.judgement.value, "headline": headline(checks), "checks": checks}
    said |= {"rows": len(found.rows), "of_rows": found.num_rows, "draws": found.law.num_draws}
    return {
        **said,
        "loo": {**plain_attributes(loo, "elpd", "std_error", "p_loo", "looic"), "rows_above_0.7": loo.influential.size},
        "waic": plain_attributes(found.waic, "elpd", "std_error", "p_waic", "waic"),
        "loo_r_squared": loo_r_squared,
        "r_squared": {"mean": float(found.r_squared.mean()), "interval_95": ends.tolist()},
        "deviance": {"mean": float(found.deviance.mean()), "sd": float(found.deviance.std(ddof=1))},
        "pointwise": {"rows": found.rows.tolist(), "observed": y[found.rows].tolist(), "elpd": loo.elpd_rows.tolist()},
        "figures": figure_numbers(found),
    }
