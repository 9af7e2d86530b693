"""What processes tell one another: how many they are, small values that all of them must know, and arrays in parts.

Values and small arrays go through the coordinator's store of keys and values, other arrays through the devices. With one process
nothing is sent.
"""

import io
import itertools
import json
import sys
from typing import Any

import numpy as np

from gyromc.checks import require, shown
from gyromc.processes.watching import waiting

WAIT = 24 * 3600
"""Seconds for the others, which may compile or save; whether they live is watched apart."""
SMALL = 2**15
"""Bytes of an array that goes through the store, which is quicker for few."""
# Every exchange has its own key.
_calls = itertools.count()


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
    return value if _client() is None else everyone(value)[0]


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

    # 64-bit numbers stay as they are.
    with waiting(), jax.enable_x64(True):
        return process_allgather(array, tiled=True)


def joined(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, in the order of the processes, on each of them; bit for bit. Their numbers may differ."""
    client = _client()
    if client is None:
        return rows
    rows = np.ascontiguousarray(rows)
    few = rows.nbytes <= SMALL
    header = json.dumps([rows.dtype.str, list(rows.shape), few]).encode()
    given = [data.split(b"\n", 1) for data in _exchanged(client, header + b"\n" + (rows.tobytes() if few else b""))]
    shapes = [json.loads(header) for header, _ in given]
    require(
        all(dtype == shapes[0][0] and shape[1:] == shapes[0][1][1:] for dtype, shape, _ in shapes),
        f"`joined` needs rows of one type and length on all processes: got {shown(shapes)}.",
    )
    if all(few for *_, few in shapes):
        data = b"".join(data for _, data in given)
    else:
        data = _through_devices(rows, [int(np.prod(shape)) * rows.itemsize for _, shape, _ in shapes])
    return np.frombuffer(data, rows.dtype).reshape(sum(shape[0] for _, shape, _ in shapes), *rows.shape[1:]).copy()


def _through_devices(rows: np.ndarray, sizes: list[int]) -> bytes:
    """The bytes of all processes, whose numbers are `sizes`."""
    from jax.experimental.multihost_utils import process_allgather

    padded = np.zeros(max(sizes), np.uint8)
    padded[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
    with waiting():
        parts = process_allgather(padded)
    return b"".join(parts[i, :size].tobytes() for i, size in enumerate(sizes))


def _state() -> Any:
    # Nothing public has the store of keys and values.
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    """The connection to the coordinator, or None where this process is alone."""
    return None if "jax" not in sys.modules or _state().num_processes == 1 else _state().client


def _exchanged(client: Any, data: bytes) -> list[bytes]:
    """What every process gave to this call of it."""
    number = next(_calls)
    place = f"gyromc/{number}/"
    # An empty value would not be stored.
    client.key_value_set_bytes(f"{place}{index()}", b"." + data)
    with waiting():
        client.wait_at_barrier(place, WAIT * 1000)
    found = dict(client.key_value_dir_get_bytes(place))
    # What was exchanged before has been read by all, or they would not be here.
    if index() == 0:
        client.key_value_delete(f"gyromc/{number - 1}/")
    return [found[f"{place}{i}"][1:] for i in range(count())]


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
