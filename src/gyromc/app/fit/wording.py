"""The fitted model in sentences, for tables, figures and pages, with the names of the user's columns."""

from typing import Any

from gyromc.app.fit.encoding import Response

__all__ = ["model_words"]

WORDS = {
    "linear": {
        "title": "linear regression",
        "sentence": "{name} is a weighted sum of the columns plus normal noise.",
        "of": "{name}",
        "effect": "change of {name}",
        "per": " and of the target",
    },
    "logistic": {
        "title": "logistic regression",
        "sentence": "The log-odds of {name} = {positive} are a weighted sum of the columns.",
        "of": "the log-odds of {name} = {positive}",
        "effect": "change of the log-odds",
        "per": "",
    },
    "softmax": {
        "title": "softmax regression",
        "sentence": "Every class has a weighted sum of the columns; its probability goes with the exponential of that.",
        "of": "a class's log-probability against the average of all classes",
        "effect": "change of the log-probability",
        "per": ", for the difference of two classes",
    },
    "student-t": {
        "title": "regression with Student-t noise",
        "sentence": "{name} is a weighted sum of the columns plus Student-t noise, which allows outliers.",
        "of": "{name}",
        "effect": "change of {name}",
        "per": " and of the target",
    },
    "ordinal": {
        "title": "ordinal regression",
        "sentence": "The log-odds of a higher class of {name} are a weighted sum of the columns, less a cutpoint for each class.",
        "of": "the log-odds of a higher class",
        "effect": "change of the log-odds",
        "per": "",
    },
    "negative-binomial": {
        "title": "negative binomial regression",
        "sentence": "{name} is a count that varies more than a Poisson one; the logarithm of its expectation is a weighted sum "
        "of the columns.",
        "of": "the logarithm of {name}'s expectation",
        "effect": "change of the log rate",
        "per": "",
    },
    "gamma": {
        "title": "gamma regression",
        "sentence": "{name} has a gamma law; the logarithm of its expectation is a weighted sum of the columns.",
        "of": "the logarithm of {name}'s expectation",
        "effect": "change of the log mean",
        "per": "",
    },
    "binomial": {
        "title": "binomial regression",
        "sentence": "{name} counts successes among trials; the log-odds of a success are a weighted sum of the columns.",
        "of": "the log-odds of a success",
        "effect": "change of the log-odds",
        "per": "",
    },
    "beta-binomial": {
        "title": "beta-binomial regression",
        "sentence": "{name} counts successes among trials and varies more than a binomial count; the log-odds of a success are a "
        "weighted sum of the columns.",
        "of": "the log-odds of a success",
        "effect": "change of the log-odds",
        "per": "",
    },
    "poisson": {
        "title": "Poisson regression",
        "sentence": "{name} is a Poisson count; the logarithm of its expectation is a weighted sum of the columns.",
        "of": "the logarithm of {name}'s expectation",
        "effect": "change of the log rate",
        "per": "",
    },
}
"""Texts on each model: `{name}` is the target, `{positive}` its positive class."""


def model_words(response: Response, prior_scale: float, noise_scale: float | None) -> dict[str, Any]:
    """Return the part of fit.json that describes the model; `noise_scale` is σ of a linear one, in the target's units."""
    fill = {"name": response.name, "positive": response.positive}
    words = {key: text.format_map(fill) for key, text in WORDS[response.model].items()}
    noise = None
    if noise_scale is not None:
        noise = f"The noise has the standard deviation {noise_scale:.4g} (posterior mean); its uncertainty counts everywhere."
    return {
        "name": response.model,
        "title": words["title"],
        "target": response.name,
        "classes": list(response.classes),
        "positive": response.positive,
        "reason": response.reason,
        "sentence": words["sentence"],
        "reading": f"A coefficient is the change of {words['of']} for one unit more of its column, the others unchanged; that "
        "of a category is against its column's reference.",
        "effect": words["effect"],
        "noise": noise,
        "noise_scale": noise_scale,
        "prior": f"Prior: N(0, {prior_scale:g}²) for a coefficient per standard deviation of its column{words['per']}; N(0, 10²) "
        "for the intercept at the columns' means.",
    }
