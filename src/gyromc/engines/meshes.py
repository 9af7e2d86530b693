"""The mesh of devices over which a run is spread: chains, rows of data and parameters, each over an axis of its own.

Input: what a user passes as `mesh`. Output: a `jax.sharding.Mesh` with the axes "chains", "data" and "parameters", in this order;
an axis that was not given has one device. `ChainMesh` says how the arrays of one plan lie on it, `put` copies a host array to it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gyromc import processes
from gyromc.checks import require, shown, whole

AXES = ("chains", "data", "parameters")
ROWS = ("data", "parameters")
"""The axes over which rows of data are shared: where parameters are gathered for a gradient, each device reads other rows."""


@dataclasses.dataclass(frozen=True)
class ChainMesh:
    """How the chains of one plan lie on a mesh; `chains` is their number without those that only fill the last device."""

    mesh: Mesh
    chains: int

    @property
    def rows(self) -> int:
        """How many devices share the rows of the data."""
        return self.mesh.shape["data"] * self.mesh.shape["parameters"]

    @property
    def parts(self) -> int:
        """Into how many parts the parameters are cut."""
        return self.mesh.shape["parameters"]

    @property
    def filled(self) -> int:
        """The number of chains that are computed, a multiple of the devices of the axis: those beyond `chains` are ignored."""
        across = self.mesh.shape["chains"]
        return -(-self.chains // across) * across

    def sharding(self, *axes: Any) -> NamedSharding:
        """An array's place on the mesh, by the axis of each of its dimensions."""
        return NamedSharding(self.mesh, P(*axes))

    def fill(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Host rows of all chains, the last one repeated for the chains that fill the last device."""
        more = [(0, self.filled - self.chains if i == axis else 0) for i in range(rows.ndim)]
        return np.pad(rows, more, mode="edge") if self.filled > self.chains else rows


def read_mesh(mesh: Any) -> Mesh | None:
    """A mesh or a dictionary of sizes as a mesh with all three axes; None stays None. `InvalidInput` for anything else.

    ```python
    from gyromc.engines.meshes import read_mesh
    assert dict(read_mesh({"chains": 1}).shape) == {"chains": 1, "data": 1, "parameters": 1}
    ```
    """
    if mesh is None:
        return None
    known = ", ".join(f"`{axis}`" for axis in AXES)
    require(
        isinstance(mesh, Mesh | Mapping),
        f"`mesh` must be a `jax.sharding.Mesh` or a dictionary of sizes such as {{'chains': 4, 'data': 2}}: got {shown(mesh)}.",
    )
    sizes = dict(mesh.shape) if isinstance(mesh, Mesh) else dict(mesh)
    for axis in sizes:
        require(axis in AXES, f"A mesh may have the axes {known}: got {shown(axis)}. Rename or drop it.")
    require(sizes, f"`mesh` must name at least one of the axes {known}: got none.")
    sizes = {axis: whole(size, f"mesh[{axis!r}]", least=1) for axis, size in sizes.items()}
    if isinstance(mesh, Mesh):
        given = [axis for axis in AXES if axis in sizes]
        devices = np.transpose(mesh.devices, [mesh.axis_names.index(axis) for axis in given])
    else:
        devices = _some_devices(sizes)
    made = Mesh(devices.reshape([sizes.get(axis, 1) for axis in AXES]), AXES)
    used = {device.process_index for device in made.devices.flat}
    require(
        len(used) == processes.count(),
        f"`mesh` must have devices of all {processes.count()} processes: it has those of {len(used)}.",
    )
    return made


def _some_devices(sizes: Mapping[str, int]) -> np.ndarray:
    """As many devices as the sizes say, the first ones JAX has."""
    devices, needed = jax.devices(), math.prod(sizes.values())
    text = " × ".join(str(size) for size in sizes.values())
    require(
        needed <= len(devices),
        f"`mesh` needs {text} = {needed} devices, and JAX has {len(devices)}. Make an axis smaller; on a CPU "
        f"`XLA_FLAGS=--xla_force_host_platform_device_count={needed}` makes so many virtual ones.",
    )
    return np.array(devices[:needed])


def default_mesh(num_chains: int) -> Mesh:
    """Where no mesh was given: chains over the local devices, as many of them as divide their number; over all devices where
    several processes run.
    """
    devices = jax.devices()
    if processes.count() == 1:
        devices = devices[: math.gcd(len(devices), num_chains)]
    return Mesh(np.array(devices).reshape(-1, 1, 1), AXES)


def shares(mesh: Mesh | None) -> tuple[str, ...]:
    """The axes besides "chains" that have more than one device."""
    return () if mesh is None else tuple(axis for axis in ROWS if mesh.shape[axis] > 1)


def put(value: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has whole, on the devices of all processes."""
    if processes.count() == 1:
        return jax.device_put(value, sharding)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(put(jax.random.key_data(value), sharding), impl=jax.random.key_impl(value))
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])
