"""Effect handlers for the terms of U = Σ_i ℓ_i + prior that a mini-batch needs (E3).

Receives a model; hands on the same model with its subsampled plate driven by given indices, or with one part of its log density
left out. NumPyro scales every site of a plate by N/b itself, so what is here sets indices and never touches a scale.
"""

import jax.numpy as jnp
from numpyro.primitives import Messenger

from gyromc.checks import require
from gyromc.errors import InvalidInput


class DrivePlates(Messenger):
    """Every plate that declares a `subsample_size` gets its indices from here: `index` for the plate `name`, all rows else.

    The plates met are noted on the way. A log density uses no random numbers; `drawing` new data does.
    """

    def __init__(self, fn, name: str | None = None, index=None, drawing: bool = False):
        self.name, self.index, self.drawing = name, index, drawing
        self.plates: dict[str, int] = {}
        super().__init__(fn)

    def process_message(self, msg):
        """Set a plate's indices before NumPyro draws them."""
        if msg["type"] == "prng_key" and msg["value"] is None and not self.drawing:
            raise InvalidInput(
                "The model draws random numbers of its own (`numpyro.prng_key()`), so that its log density is not a function of "
                "the parameters. Make what is random a sample site, or pass a fixed key in the arguments."
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
    """Leaves out the log density of the sites inside the plate `name`, or of all others; nothing of them is computed."""

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
