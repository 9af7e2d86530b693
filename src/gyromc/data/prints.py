"""Files of rows as a few numbers, by which a stored plan finds them again: path, size, shape, type, and a fingerprint.

Input: a file. Output: a `FilePrint`, which is stored in place of the rows and compared with the file when the plan is read. The
fingerprint is the SHA-256 of 64 blocks of 4096 bytes, the first and the last and 62 equally spaced between them: a file of up to
256 KiB is covered as a whole. Of a larger file another header, another number of rows, rows in another order and numbers computed
anew are noticed; a few rows that were changed in place between two blocks are not.
"""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import IO, ClassVar

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["FilePrint", "file_print"]

BLOCK = 2**12  # bytes
BLOCKS = 64


@dataclasses.dataclass(frozen=True)
class FilePrint:
    """What is stored of a file: where it was, its `size` in bytes, what it holds, and the SHA-256 of some of its blocks."""

    path: str
    size: int
    shape: tuple[int, ...]
    dtype: str
    sha256: str

    NOT_COMPARED: ClassVar[tuple[str, ...]] = ("path",)  # the same file elsewhere holds the same rows

    def require_there(self) -> None:
        """Raise `InvalidInput` where there is no file at the path."""
        require(
            Path(self.path).is_file(),
            f"There is no file {self.path}, whose rows the stored plan reads. Put it back, or say where it is now: "
            f'`gyromc.load(path, data={{"{self.path}": "…"}})`.',
        )

    def require_same(self, now: "FilePrint") -> None:
        """Raise `InvalidInput` with what differs where the file is another one now."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in self.NOT_COMPARED]
        pairs = {name: (getattr(self, name), getattr(now, name)) for name in names}
        changed = [f"{name} {before} → {after}" for name, (before, after) in pairs.items() if before != after]
        require(
            not changed,
            f"{now.path} is not the file that the stored plan read: {', '.join(changed)}. Restore it, or run the plan anew.",
        )


def file_print(file: IO[bytes], path: str | Path, shape: tuple[int, ...], dtype: str) -> FilePrint:
    """Read some blocks of an open file; `InvalidInput` where it ends before its size."""
    size, found = os.fstat(file.fileno()).st_size, hashlib.sha256()
    for place in _places(size):
        file.seek(place)
        block = file.read(BLOCK)
        if len(block) != min(BLOCK, size - place):
            raise InvalidInput(f"{path} ended at byte {place + len(block):,} of {size:,}: it was changed. Start again.")
        found.update(block)
    return FilePrint(os.path.abspath(path), size, tuple(shape), dtype, found.hexdigest())


def _places(size: int) -> list[int]:
    """Where the blocks begin: all of a small file, else equally spaced from the first byte to the last."""
    if size <= BLOCK * BLOCKS:
        return list(range(0, size, BLOCK))
    return [i * (size - BLOCK) // (BLOCKS - 1) for i in range(BLOCKS)]
