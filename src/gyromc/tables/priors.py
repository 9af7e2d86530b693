"""Priors of a fit to a table: those that the user asks for, read and checked, and all of them in words.

Input: texts such as "age=normal(0, 1)" or "sd(intercept | subject)=student_t(3, 0, 10)", and what the model consists of. Output:
priors by the names that `gyromc.regression` knows; sentences for `--explain` and the report.
"""

from collections.abc import Mapping, Sequence

from gyromc.checks import require, shown
from gyromc.regression.problem import GroupTerm, settable
from gyromc.show.numbers import did_you_mean, listed
from gyromc.targets.families import FAMILIES, NormalNoise
from gyromc.targets.priors import Prior

__all__ = ["asked_priors", "prior_words"]


def asked_priors(
    texts: Sequence[str],
    sources: Mapping[str, str],
    groups: Sequence[GroupTerm],
    intercept: bool,
    families: Sequence[str],
) -> dict[str, Prior]:
    """Return the priors by name; what is named itself goes before its term, that before `all`.

    `sources` has the term of each column of X; `families` are those that may be fitted.
    """
    domains = {}
    for family in reversed(families):
        domains |= settable(FAMILIES[family], list(sources), intercept, groups)
    named = {name: (2, [name]) for name in domains}
    for column, source in sources.items():
        if source not in sources:  # a term of several columns goes before a parameter of its name
            rank, columns = named.get(source, (2, []))
            named[source] = 1, [*(columns if rank == 1 else []), column]
    named.setdefault("all", (0, list(sources)))
    found: dict[tuple[int, str], Prior] = {}
    for text in texts:
        name, sign, form = text.rpartition("=")
        name = name.strip()
        require(
            sign and name,
            f"`--prior` takes NAME=LAW, as in 'age=normal(0, 1)' or 'sigma=exponential(1)': got {shown(text)}.",
        )
        prior = Prior.read(form, f"`--prior {text}`: the law")
        hint = did_you_mean(name, list(named), "There are")
        require(name in named, f"`--prior` names {name!r}, which is no coefficient, parameter, term or group. {hint}")
        rank, targets = named[name]
        for target in targets:
            prior.require(domains[target], f"`--prior {text}`: {target}")
            require((rank, target) not in found, f"`--prior` names {target} twice. Keep one of them.")
            found[rank, target] = prior
    return {target: found[rank, target] for rank, target in sorted(found, key=lambda key: key[0])}


def prior_words(family: str, groups: Sequence[GroupTerm], asked: Mapping[str, Prior]) -> str:
    """Return the priors of all further parameters in sentences, then those that were asked for."""
    known, others = FAMILIES[family], settable(FAMILIES[family], (), False, groups)
    # σ of a linear model is integrated out over a wider prior where that can be done.
    integrated = not groups and all(prior.law == "normal" for name, prior in asked.items() if name not in others)
    further = NormalNoise.further if known is FAMILIES["linear"] and not integrated else known.further
    sentences = [one.words for one in further if one.name not in asked]
    if known is FAMILIES["linear"] and integrated and "sigma" not in asked:
        sentences.append("The logarithm of sigma: uniform.")
    if groups:
        of_target = " and of the target" if known.measured else ""
        sentences.append(
            f"Standard deviations of groups: exponential with mean 1 per standard deviation of their column{of_target}."
        )
        if any(len(group.columns) > 1 for group in groups) and "cor" not in asked:
            sentences.append("Correlations of groups: LKJ(2).")
    texts = [f"{name} {prior}" for name, prior in asked.items()]
    if texts:
        sentences.append(f"Asked for instead, in the units of the file: {listed(texts, 8)}.")
    return " ".join(sentences)
