"""Effect handlers that select rows of a subsampled plate, or parts of the log density.

Input: a model. Output: the same model with the indices of its subsampled plate set, or with one part of its log density left
out. NumPyro itself scales every site of a plate by N/b; these handlers set indices and never change a scale.
"""

import jax.numpy as jnp
from numpyro.primitives import Messenger

from gyromc.checks import require
from gyromc.errors import InvalidInput


class DrivePlates(Messenger):
    """Sets the indices of every plate with a `subsample_size`: `index` for the plate `name`, all rows for others.

    `plates` records the plates and their sizes. `drawing` allows random numbers: new data need them, a log density must not.
    """

    def __init__(self, fn, name: str | None = None, index=None, drawing: bool = False):
        self.name, self.index, self.drawing = name, index, drawing
        self.plates: dict[str, int] = {}
        super().__init__(fn)

    def process_message(self, msg):
        """Set a plate's indices before NumPyro draws them."""
        if msg["type"] == "prng_key" and msg["value"] is None and not self.drawing:
            raise InvalidInput(
                "The model draws random numbers of its own (`numpyro.prng_key()`), so its log density is not a function of "
                "the parameters. Make the random values a sample site, or pass a fixed key in the arguments."
            )
        if msg["type"] != "plate" or msg["args"][1] is None:
            return
        size, asked = msg["args"]
        require(
            self.drawing or 1 <= asked <= size,
            f"Plate {msg['name']!r} has `subsample_size={asked}` but only {size} rows: take 1 to {size}. "
            "The size of the mini-batches is the oracle's, not the model's.",
        )
        self.plates[msg["name"]] = size
        value = jnp.arange(size) if self.index is None or msg["name"] != self.name else self.index
        msg["value"], msg["args"] = value, (size, value.shape[0])


class OnlyPart(Messenger):
    """Keeps the log density of the sites inside the plate `name`, or of all others; the rest is not computed."""

    def __init__(self, fn, name: str | None, inside: bool):
        self.name, self.inside = name, inside
        super().__init__(fn)

    def process_message(self, msg):
        """Mask a site that belongs to the other part."""
        if msg["type"] == "sample" and in_plate(msg, self.name) != self.inside:
            msg["fn"] = msg["fn"].mask(False)


def in_plate(site, name: str | None) -> bool:
    """Whether a site lies inside the plate."""
    return any(frame.name == name for frame in site["cond_indep_stack"])
