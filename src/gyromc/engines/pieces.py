"""Draws in pieces: files that the checkpoints of a run share, so that a checkpoint writes the new draws only.

Input: the draws of a run so far. Output: archives in the directory of its checkpoints, named by the steps whose draws they hold,
and the list of them, with checksums, that a checkpoint stores. A piece of at least `PIECE` bytes and `SHARE` of all draws is
written once and never changed. The draws after the last such piece are written again with the next checkpoint, as one piece with
a name of its own. So pieces stay few, and a checkpoint writes little more than what is new.
"""

import contextlib
import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from gyromc import __version__
from gyromc.archive import digest, read_archive, unpack, write_archive
from gyromc.checks import require

__all__ = ["PIECE", "DrawsFile", "DrawsFiles"]

KIND = "draws"
PIECE, SHARE = 2**18, 1 / 256
"""The bytes, and the share of all draws, from which on a piece is not written again."""
NAME = re.compile(r"draws-(\d{15})-(\d{15})\.gyromc")


@dataclasses.dataclass(frozen=True)
class DrawsFile:
    """One file of draws: its name, how many draws of all chains it holds, their bytes and their SHA-256."""

    name: str
    draws: int
    size: int
    sha256: str


class DrawsFiles:
    """The pieces of one run in a directory. `stored`: those that the newest checkpoint refers to, in order."""

    def __init__(self, directory: Path, burn_in: int, thin: int | None):
        self.directory, self.burn_in, self.thin = directory, burn_in, thin or 1
        self.stored: tuple[DrawsFile, ...] = ()

    def added(self, kept: Sequence[np.ndarray]) -> tuple[DrawsFile, ...]:
        """Write the draws that no piece holds; return all pieces. `stored` stays until a checkpoint refers to them."""
        total = sum(map(len, kept))
        if total == sum(piece.draws for piece in self.stored):
            return self.stored
        full = self.stored
        if full and full[-1].size < max(PIECE, SHARE * sum(piece.size for piece in full)):
            full = full[:-1]
        first = sum(piece.draws for piece in full)
        draws = _from(kept, first)
        name = f"draws-{self._step(first):015d}-{self._step(total):015d}.gyromc"
        sums = write_archive(self.directory / name, KIND, draws, {}, __version__)
        return (*full, DrawsFile(name, len(draws), draws.nbytes, sums["0.npy"]))

    def read(self, pieces: Sequence[DrawsFile]) -> np.ndarray:
        """The draws of all pieces, draws × chains × d; `InvalidInput` where one is missing or damaged."""
        return np.concatenate([self._one(piece) for piece in pieces])

    def keep_only(self, names: Collection[str]) -> None:
        """Remove the files of all other pieces."""
        for path in self.directory.iterdir():
            if NAME.fullmatch(path.name) and path.name not in names:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _step(self, draw: int) -> int:
        """The step at which a draw is kept."""
        return self.burn_in + draw * self.thin

    def _one(self, piece: DrawsFile) -> np.ndarray:
        path = self.directory / piece.name
        require(NAME.fullmatch(piece.name) is not None, f"{path} is no name of a piece of draws.")
        archive = read_archive(path)
        draws = unpack(archive.content, archive.arrays, {})
        same = archive.kind == KIND and isinstance(draws, np.ndarray) and digest(draws) == piece.sha256
        require(same, f"{path} holds other draws than those that belong to the checkpoint.")
        return draws


def _from(kept: Sequence[np.ndarray], first: int) -> np.ndarray:
    """The draws from number `first` on as one array; those before are not copied."""
    begin, parts = sum(map(len, kept)), []
    for part in reversed(kept):
        begin -= len(part)
        parts.append(part[max(0, first - begin) :])
        if begin <= first:
            break
    return np.concatenate(parts[::-1])
