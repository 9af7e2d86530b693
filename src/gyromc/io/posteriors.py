"""Posteriors in files: `Posterior.save`, and what `gyromc.load` makes of the file.

Stored are the table, the weighted draws and the draws as their target reports them. The model itself, which is a user's function,
is not: what is read answers everything but questions that need new gradients.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc.errors import InvalidInput
from gyromc.io.archive import Archive, Codec, check_fields, known_classes, write_archive
from gyromc.posterior import Account, Posterior, PosteriorMean, Reported

CODEC = Codec(known_classes(PosteriorMean, Account, Reported))
FIELDS = ("rows", "level", "draws", "weights", "values_at_draws", "warnings", "hints", "account")


def save_posterior(found: Posterior, path: str | Path) -> None:
    """Write a posterior to a file; parameters in a class of the user's own become a mapping by their places in it."""
    reported = found.reported
    parameters = jax.tree.map(np.asarray, reported.parameters)
    try:
        CODEC.pack(parameters)
    except InvalidInput:
        leaves = jax.tree_util.tree_leaves_with_path(parameters)
        parameters = {jax.tree_util.keystr(place, simple=True, separator="."): leaf for place, leaf in leaves}
    labels = {name: np.array([str(label) for label in of]) for name, of in reported.coords.items()}
    fields: dict[str, Any] = {name: getattr(found, name) for name in FIELDS}
    fields["rows"] = dict(found.items())
    write_archive(path, "posterior", {**fields, "model": Reported(parameters, reported.dims, labels)}, CODEC)


def restored_posterior(archive: Archive) -> Posterior:
    """The posterior of an archive that was read; `ValueError` where its parts do not fit each other."""
    fields = CODEC.unpack(archive)
    check_fields(Posterior, fields)
    found = Posterior(**fields)
    if not isinstance(found.model, Reported):
        raise ValueError("it holds no draws of parameters")
    leaves = [np.shape(leaf)[:2] for leaf in jax.tree.leaves(found.model.parameters)]
    named = all(name == row.name for name, row in found.rows.items())
    if not named or found.values_at_draws.shape[2] != len(found.rows) or set(leaves) != {found.weights.shape}:
        raise ValueError("its names, draws and weights do not fit each other")
    if not (np.all(found.weights >= 0) and 0 < found.weights.sum() < np.inf and 0 < found.level < 1):
        raise ValueError("its weights or its level are none")
    return found
