"""`--prior NAME=normal(location, scale)`: the priors that a user asks for, by coefficient or group.

Input: the texts of the option, the columns of X with the terms they come from, and the names of groups. Output: location and
scale by name. A name may be a coefficient, a term or column that several coefficients come from, `intercept`, a group, or `all`.
"""

import difflib
import re
from collections.abc import Mapping, Sequence

from gyromc.checks import require
from gyromc.csvfile import is_number
from gyromc.errors import InvalidInput
from gyromc.regression.problem import Prior
from gyromc.show.numbers import listed

__all__ = ["asked_priors"]

FORM = re.compile(r"\s*(normal|exponential)\s*\(([^()]*)\)\s*")
EXAMPLES = "'age=normal(0, 1)', 'all=normal(0, 1)', or for the standard deviations of a group 'subject=exponential(1)'"


def asked_priors(
    texts: Sequence[str], sources: Mapping[str, str], groups: Sequence[str], intercept: bool
) -> dict[str, Prior]:
    """Return the priors by name of a coefficient or group; what is named itself goes before its term, that before `all`.

    `sources` has the term of each column of X.
    """
    found: list[tuple[int, str, Prior]] = []
    for text in texts:
        name, prior, is_group = _read(text)
        targets, rank = _targets(name, sources, groups, intercept)
        for target in targets:
            kind = "a group has an exponential prior" if target in groups else "a coefficient has a normal one"
            require((target in groups) == is_group, f"`--prior {text}`: {kind}. Write it as {EXAMPLES}.")
            found.append((rank, target, prior))
    found.sort(key=lambda entry: entry[0])
    twice = [
        target for i, (rank, target, _) in enumerate(found) if (rank, target) in [entry[:2] for entry in found[:i]]
    ]
    require(not twice, f"`--prior` names {twice[0] if twice else ''} twice. Keep one of them.")
    return {target: prior for _, target, prior in found}


def _read(text: str) -> tuple[str, Prior, bool]:
    """Return the name, the prior, and whether it is one for a group."""
    name, sign, form = text.rpartition("=")
    match = FORM.fullmatch(form)
    given = [part.strip() for part in match[2].split(",")] if match else []
    require(
        sign
        and name.strip()
        and match
        and all(map(is_number, given))
        and len(given) == (2 if match[1] == "normal" else 1),
        f"`--prior` takes NAME=normal(location, scale), as in {EXAMPLES}: got {text!r}.",
    )
    assert match is not None
    numbers = [float(part) for part in given]
    require(numbers[-1] > 0, f"`--prior {text}`: the {'scale' if match[1] == 'normal' else 'rate'} must be positive.")
    if match[1] == "normal":
        return name.strip(), Prior(numbers[1], numbers[0]), False
    return name.strip(), Prior(1 / numbers[0]), True


def _targets(name: str, sources: Mapping[str, str], groups: Sequence[str], intercept: bool) -> tuple[list[str], int]:
    """Return the coefficients or the group that a name stands for, and its rank: the more special, the higher."""
    if name in sources or name in groups or (name == "intercept" and intercept):
        return [name], 2
    of_term = [column for column, source in sources.items() if source == name]
    if of_term:
        return of_term, 1
    if name == "all":
        return list(sources), 0
    known = [*sources, *dict.fromkeys(sources.values()), *groups, "all", *(["intercept"] if intercept else [])]
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"There are {listed(list(dict.fromkeys(known)), 12)}."
    )
    raise InvalidInput(f"`--prior` names {name!r}, which is no coefficient, term or group. {hint}")
