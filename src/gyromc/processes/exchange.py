"""What processes tell one another: how many they are, small values that all of them must know, and arrays in parts.

Values go through the coordinator's store of keys and values, arrays through the devices. With one process nothing is sent.
"""

import io
import itertools
import json
import sys
from typing import Any

import numpy as np

from gyromc.checks import require, shown
from gyromc.processes.watching import waiting

__all__ = ["agree", "count", "everyone", "gathered", "index", "joined"]

WAIT = (
    24 * 3600
)  # seconds that one process waits for the others, which may compile or save; whether they live is watched apart
_calls = itertools.count()  # every exchange has its own key


def count() -> int:
    """How many processes compute together."""
    return 1 if _client() is None else _state().num_processes


def index() -> int:
    """Which of them this one is, from 0."""
    return 0 if _client() is None else _state().process_id


def agree(value: Any) -> Any:
    """The value of process 0, on every process: a number, a text, None, an array, or lists and dictionaries of these.

    ```python
    from gyromc.processes import agree
    assert agree(3) == 3
    ```
    """
    client = _client()
    if client is None:
        return value
    return _decoded(_exchanged(client, _encoded(value) if index() == 0 else b"")[0])


def everyone(value: Any) -> list[Any]:
    """The values of all processes, by their index; each as `agree` takes it."""
    client = _client()
    return [value] if client is None else [_decoded(data) for data in _exchanged(client, _encoded(value))]


def gathered(array: Any) -> np.ndarray:
    """A `jax.Array` whose parts are on several processes, whole on each of them."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    import jax
    from jax.experimental.multihost_utils import process_allgather

    with jax.enable_x64(True):  # 64-bit numbers stay as they are
        return process_allgather(array, tiled=True)


def joined(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, in the order of the processes, on each of them; bit for bit. Their numbers may differ."""
    if _client() is None:
        return rows
    from jax.experimental.multihost_utils import process_allgather

    rows = np.ascontiguousarray(rows)
    shapes = everyone([rows.dtype.str, list(rows.shape)])
    require(
        all(dtype == shapes[0][0] and shape[1:] == shapes[0][1][1:] for dtype, shape in shapes),
        f"`joined` needs rows of one type and length on all processes: got {shown(shapes)}.",
    )
    sizes = [int(np.prod(shape)) * rows.itemsize for _, shape in shapes]
    padded = np.zeros(max(sizes), np.uint8)
    padded[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
    parts = process_allgather(padded)
    data = b"".join(parts[i, :size].tobytes() for i, size in enumerate(sizes))
    return np.frombuffer(data, rows.dtype).reshape(-1, *rows.shape[1:]).copy()


def _state() -> Any:
    from jax._src import distributed  # nothing public has the store of keys and values

    return distributed.global_state


def _client() -> Any:
    """The connection to the coordinator, or None where this process is alone."""
    return None if "jax" not in sys.modules or _state().num_processes == 1 else _state().client


def _exchanged(client: Any, data: bytes) -> list[bytes]:
    """What every process gave to this call of it."""
    number, own, total = next(_calls), index(), count()
    client.key_value_set_bytes(f"gyromc/{number}/{own}", b"." + data)  # an empty value would not be stored
    with waiting():
        client.wait_at_barrier(f"gyromc/{number}", WAIT * 1000)
    found = dict(client.key_value_dir_get_bytes(f"gyromc/{number}/"))
    if own == 0 and number > 0:  # all have read the one before, or they would not be here
        client.key_value_delete(f"gyromc/{number - 1}/")
    return [found[f"gyromc/{number}/{i}"][1:] for i in range(total)]


def _encoded(value: Any) -> bytes:
    """Numbers and texts as JSON, arrays as .npy: nothing that is executed when it is read."""
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return file.getvalue()
    return json.dumps(value).encode()


def _decoded(data: bytes) -> Any:
    if data.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(data), allow_pickle=False)
    return json.loads(data)
