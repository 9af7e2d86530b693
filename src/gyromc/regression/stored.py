"""The classes that a stored posterior is made of, by name: what a saved file may hold, and nothing else."""

from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.standardised import RowSums, Units
from gyromc.targets import families
from gyromc.targets.likelihoods import Likelihood

__all__ = ["POSTERIOR_CLASSES"]

assert families.StudentT in Likelihood.__subclasses__()  # families that are not imported are not found


def _below(base: type) -> list[type]:
    """All classes that derive from a class."""
    return [known for direct in base.__subclasses__() for known in (direct, *_below(direct))]


POSTERIOR_CLASSES: dict[str, type] = {
    known.__name__: known for known in (Draws, GroupDraws, Units, RowSums, *_below(Likelihood))
}
