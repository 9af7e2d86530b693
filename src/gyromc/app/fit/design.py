"""The matrix that a formula makes of columns, the same for new rows: knots, means and levels are those of the fitted rows.

Input: a `Formula` and a frame of columns, numbers as arrays and categories as pandas Categoricals. Output: X with the names of
its columns, the columns of each group term, and the offset. What has to be remembered is plain data that JSON can hold.
"""

import copy
import dataclasses
import functools
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.app.fit.columns import pandas_module
from gyromc.app.fit.expressions import functions
from gyromc.app.fit.formula import Expression, Formula, Terms, formulaic_module, read_formula
from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["FormulaDesign", "evaluate"]


@dataclasses.dataclass(frozen=True)
class FormulaDesign:
    """A formula and what it remembers of the fitted rows.

    - `text`: the formula; `columns`: those that it may name, the response's among them.
    - `names`: of X's columns; `sources`: the term of the formula that each comes from; `intercept`: whether there is one.
    - `group_columns`: the names of the columns of each group term.
    - `memory`: what functions such as `bs` remember, for the common terms, then each group term.
    """

    text: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    sources: tuple[str, ...]
    intercept: bool
    group_columns: tuple[tuple[str, ...], ...]
    memory: tuple[Any, ...]

    @classmethod
    def learn(cls, formula: Formula, columns: Sequence[str], frame: Mapping[str, Any]) -> "FormulaDesign":
        """Return the design that remembers these rows."""
        parts = [_Part.of(terms, None, frame) for terms in (formula.common, *(group.terms for group in formula.groups))]
        common = parts[0]
        return cls(
            text=formula.text,
            columns=tuple(columns),
            names=common.names,
            sources=common.sources,
            intercept=formula.common.intercept,
            group_columns=tuple(
                (*(["intercept"] if group.terms.intercept else []), *part.names)
                for group, part in zip(formula.groups, parts[1:], strict=True)
            ),
            memory=tuple(part.memory for part in parts),
        )

    @functools.cached_property
    def formula(self) -> Formula:
        """The formula, read again from its text."""
        return read_formula(self.text, self.columns)

    def check(self, predictors: Collection[str]) -> None:
        """Raise an error where what was remembered is not what the formula needs, or it names other columns than these."""
        remembered = [_restored(memory) for memory in self.memory]
        parts = [self.formula.common, *(group.terms for group in self.formula.groups)]
        named = {name for terms in parts for name in terms.columns}
        complete = len(remembered) == len(parts) and named <= set(predictors)
        require(complete, "The formula needs what is not in the file.")

    def matrix(self, frame: Mapping[str, Any]) -> np.ndarray:
        """Return X, without a column for the intercept."""
        return _Part.of(self.formula.common, self.memory[0], frame).values

    def group_matrices(self, frame: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the columns of each group term, ones for its intercept first."""
        found = []
        for group, memory in zip(self.formula.groups, self.memory[1:], strict=True):
            values = _Part.of(group.terms, memory, frame).values
            ones = np.ones((len(values), 1 if group.terms.intercept else 0))
            found.append(np.concatenate([ones, values], axis=1))
        return found

    def offset(self, frame: Mapping[str, Any]) -> np.ndarray | None:
        """Return the sum of the offsets; None where the formula has none."""
        parts = [evaluate(offset, frame) for offset in self.formula.offsets]
        return np.sum(parts, axis=0) if parts else None


def evaluate(expression: Expression, frame: Mapping[str, Any]) -> np.ndarray:
    """Return the values of an expression without memory, such as the response or an offset."""
    name = expression.columns[0]
    if expression.text == name:
        return np.asarray(frame[name], float)
    formulaic = formulaic_module()
    factor = formulaic.parser.types.Factor(expression.text, eval_method="python")
    terms = Terms((formulaic.parser.types.Term([factor]),), False, expression.columns, (), expression.columns)
    values = _Part.of(terms, None, frame).values
    require(values.shape[1] == 1, f"`{expression.text}` makes {values.shape[1]} columns where one is needed.")
    return values[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The columns that some terms make, without the intercept's."""

    values: np.ndarray
    names: tuple[str, ...]
    sources: tuple[str, ...]
    memory: Any

    @classmethod
    def of(cls, terms: Terms, memory: Any, frame: Mapping[str, Any]) -> "_Part":
        """Evaluate terms; with the memory of earlier rows where there is one."""
        rows = len(next(iter(frame.values()))) if frame else 0
        if not terms.terms:
            return cls(np.zeros((rows, 0)), (), (), _plain({}))
        formulaic, pandas = formulaic_module(), pandas_module()
        types = formulaic.parser.types
        one = [types.Term([types.Factor("1", eval_method="literal")])] if terms.intercept else []
        data = pandas.DataFrame({name: frame[name] for name in terms.columns})
        known = {} if memory is None else {"transform_state": _restored(copy.deepcopy(memory))}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # what is not finite is refused with its line
                formula = formulaic.Formula([*one, *terms.terms], _ordering="none")
                spec = formulaic.ModelSpec.from_spec(formula, na_action="ignore", output="numpy", **known)
                found = spec.get_model_matrix(data, context=functions())
        except InvalidInput:
            raise
        except Exception as error:  # formulaic passes on what a function raised
            cause = error.__cause__ or error
            raise InvalidInput(f"The formula cannot be computed: {str(cause).strip().splitlines()[0]}") from error
        structure, values = found.model_spec.structure, np.asarray(found, float)
        named = [(name, str(part.term)) for part in structure for name in part.columns]
        kept = [i for i, (name, _) in enumerate(named) if name != "Intercept"]
        return cls(
            values[:, kept],
            tuple(_label(named[i][0]) for i in kept),
            tuple(named[i][1] for i in kept),
            _plain(found.model_spec.transform_state),
        )


def _label(name: str) -> str:
    """Return the name of a column as tables have it: `region[north]` for `region[T.north]`."""
    return name.replace("[T.", "[")


def _plain(value: Any) -> Any:
    """Return a memory as lists, numbers and texts; dictionaries as lists of pairs, since their keys may be numbers."""
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    require(
        value is None or isinstance(value, bool | int | float | str), f"A formula remembers no {type(value).__name__}."
    )
    return value


def _restored(value: Any) -> Any:
    """Return the memory that `_plain` wrote."""
    if isinstance(value, Mapping):
        if "array" in value:
            return np.array(value["array"], float)
        return {_restored(k): _restored(v) for k, v in value["pairs"]}
    return [_restored(v) for v in value] if isinstance(value, list | tuple) else value
