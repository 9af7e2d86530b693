"""The text of a fit for tables, figures and pages: the fitted model in sentences, headings, cells."""

import dataclasses
from typing import Any

from gyromc.app.fit.encoding import Response
from gyromc.show.numbers import number

__all__ = ["cell", "heading", "model_words"]


@dataclasses.dataclass(frozen=True)
class _Words:
    """The sentences of one model: `{name}` is the target, `{positive}` its positive class."""

    title: str
    sentence: str
    of: str
    effect: str
    per: str = ""


WORDS = {
    "linear": _Words(
        title="linear regression",
        sentence="{name} is a weighted sum of the columns plus normal noise.",
        of="{name}",
        effect="change of {name}",
        per=" and of the target",
    ),
    "logistic": _Words(
        title="logistic regression",
        sentence="The log-odds of {name} = {positive} are a weighted sum of the columns.",
        of="the log-odds of {name} = {positive}",
        effect="change of the log-odds",
    ),
    "softmax": _Words(
        title="softmax regression",
        sentence="Every class has a weighted sum of the columns; its probability goes with the exponential of that.",
        of="a class's log-probability against the average of all classes",
        effect="change of the log-probability",
        per=", for the difference of two classes",
    ),
    "poisson": _Words(
        title="Poisson regression",
        sentence="{name} is a Poisson count; the logarithm of its expectation is a weighted sum of the columns.",
        of="the logarithm of {name}'s expectation",
        effect="change of the log rate",
    ),
}


def model_words(response: Response, prior_scale: float, noise_scale: float | None) -> dict[str, Any]:
    """Return the part of fit.json that describes the model; `noise_scale` is σ of a linear one, in the target's units."""
    words = WORDS[response.model]

    def fill(text: str) -> str:
        return text.format(name=response.name, positive=response.positive)

    noise = None
    if noise_scale is not None:
        noise = f"The noise has the standard deviation {noise_scale:.4g}, where the evidence is largest; it is held fixed there."
    return {
        "name": response.model,
        "title": words.title,
        "target": response.name,
        "classes": list(response.classes),
        "positive": response.positive,
        "reason": response.reason,
        "sentence": fill(words.sentence),
        "reading": f"A coefficient is the change of {fill(words.of)} for one unit more of its column, the others unchanged; that "
        "of a category is against its column's reference.",
        "effect": fill(words.effect),
        "noise": noise,
        "noise_scale": noise_scale,
        "prior": f"Prior: N(0, {prior_scale:g}²) for a coefficient per standard deviation of its column{words.per}; N(0, 10²) "
        "for the intercept at the columns' means.",
    }


def cell(column: str, value: Any) -> str:
    """Return a value of a table of predictions as text: probabilities with three decimals, errors with two digits."""
    if isinstance(value, str | int):
        return str(value)
    if column == "probability":
        return f"{value:.3f}"
    return number(value, 2 if column == "monte_carlo_error" else 3)


def heading(column: str) -> str:
    """Return the name of a column of predictions as a heading: "Monte Carlo error" for "monte_carlo_error"."""
    return column.replace("_", " ").replace("monte carlo", "Monte Carlo")
