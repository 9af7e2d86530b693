"""How a run is divided: over a mesh of devices, and into slices of chains that processes and devices move on their own.

A mesh has the axes "chains", "data" and "parameters", in this order. A slice has the random numbers that its chains have in one
piece, so the averages are the same, bit for bit, on any number of processes and devices.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from gyromc import processes
from gyromc.checks import require, shown, whole
from gyromc.engines.base import BY_CHAIN, Session, with_chains
from gyromc.plan import Plan
from gyromc.results import EngineState

AXES = ("chains", "data", "parameters")


def read_mesh(mesh: Any) -> Mesh | None:
    """A mesh or a dictionary of sizes as a mesh with all axes; None stays None. `InvalidInput` for anything else."""
    if mesh is None:
        return None
    known = ", ".join(f"`{axis}`" for axis in AXES)
    kinds = "a `jax.sharding.Mesh` or a dictionary of sizes such as {'chains': 4, 'data': 2}"
    require(isinstance(mesh, Mesh | Mapping), f"`mesh` must be {kinds}: got {shown(mesh)}.")
    sizes = dict(mesh.shape) if isinstance(mesh, Mesh) else dict(mesh)
    for axis in sizes:
        require(axis in AXES, f"A mesh may have the axes {known}: got {shown(axis)}. Rename or drop it.")
    require(sizes, f"`mesh` must name at least one of the axes {known}: got none.")
    sizes = {axis: whole(size, f"mesh[{axis!r}]", least=1) for axis, size in sizes.items()}
    if isinstance(mesh, Mesh):
        devices = np.transpose(mesh.devices, [mesh.axis_names.index(axis) for axis in AXES if axis in sizes])
    else:
        found, needed, text = jax.devices(), math.prod(sizes.values()), " × ".join(map(str, sizes.values()))
        remedy = f"on a CPU `XLA_FLAGS=--xla_force_host_platform_device_count={needed}` makes so many virtual ones."
        lacks = f"`mesh` needs {text} = {needed} devices, and JAX has {len(found)}"
        require(needed <= len(found), f"{lacks}. Make an axis smaller; {remedy}")
        devices = np.array(found[:needed])
    made = Mesh(devices.reshape([sizes.get(axis, 1) for axis in AXES]), AXES)
    used, count = {device.process_index for device in made.devices.flat}, processes.count()
    require(len(used) == count, f"`mesh` must have devices of all {count} processes: it has those of {len(used)}.")
    return made


def default_mesh(num_chains: int) -> Mesh:
    """Chains over as many devices as divide their number; over all devices where several processes run."""
    devices = jax.devices()
    if processes.count() == 1:
        devices = devices[: math.gcd(len(devices), num_chains)]
    return Mesh(np.array(devices).reshape(-1, 1, 1), AXES)


def shares(mesh: Mesh | None) -> tuple[str, ...]:
    """The axes besides "chains" that have more than one device."""
    return () if mesh is None else tuple(axis for axis in AXES[1:] if mesh.shape[axis] > 1)


def put(value: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has whole, on the devices of all processes."""
    if processes.count() == 1:
        return jax.device_put(value, sharding)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(put(jax.random.key_data(value), sharding), impl=jax.random.key_impl(value))
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])


Make = Callable[[Plan, EngineState, int], Session]  # of chains in a state, whose first one has this number among all


def sliced(make: Make, plan: Plan, state: EngineState, devices: Sequence[Any] = (None,)) -> Session:
    """A session of all chains: of slices where several processes compute, or this one has several `devices`."""
    if processes.count() * len(devices) == 1:
        return make(plan, state, 0)
    return Slices(make, plan, state, devices)


class Slices:
    """The chains of one plan in slices: those of this process here, one for each of its `devices`."""

    def __init__(self, make: Make, plan: Plan, state: EngineState, devices: Sequence[Any]):
        self.plan, self.begun, self.steps = plan, state, 0
        total = processes.count() * len(devices)
        edges = np.linspace(0, plan.num_chains, total + 1).round().astype(int)
        edges = edges[processes.index() * len(devices) :][: len(devices) + 1]
        self.own = slice(edges[0], edges[-1])
        bounds = [(device, a, b) for device, a, b in zip(devices, edges[:-1], edges[1:], strict=True) if a < b]
        self.devices = [device for device, _, _ in bounds]
        part = lambda a, b: make(with_chains(plan, int(b - a)), _rows_of(state, slice(a, b)), int(a))
        self.sessions: list[Session] = self._each([lambda a=a, b=b: part(a, b) for _, a, b in bounds])

    def _each(self, functions: list[Callable[[], Any]]) -> list[Any]:
        """What the functions return, each called on its own device, at the same time."""

        def called(device: Any, function: Callable[[], Any]) -> Any:
            with jax.default_device(device):
                return function()

        if len(functions) <= 1:
            return list(map(called, self.devices, functions))
        with ThreadPoolExecutor(len(functions)) as pool:
            return list(pool.map(called, self.devices, functions))

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        self._each([lambda s=s: s.advance(num_steps, first_slot) for s in self.sessions])
        self.steps += num_steps

    def failed(self) -> bool:
        return any(processes.everyone(any(session.failed() for session in self.sessions)))

    def kept(self, count: int) -> np.ndarray:
        if count == 0:
            return np.zeros((0, self.plan.num_chains, self.plan.dim), self.plan.dtype)
        own = [session.kept(count).swapaxes(0, 1) for session in self.sessions]
        none = np.zeros((0, count, self.plan.dim), self.plan.dtype)
        return processes.joined(np.concatenate([none, *own])).swapaxes(0, 1)

    def state(self) -> EngineState:
        states = [session.state() for session in self.sessions]
        if not states:  # more processes than chains
            states = [dataclasses.replace(_rows_of(self.begun, self.own), step=self.begun.step + self.steps)]
        whole: dict[str, Any] = {}
        for name in BY_CHAIN:
            rows = [getattr(state, name) for state in states]
            whole[name] = None if rows[0] is None else processes.joined(np.concatenate(rows))
        clock = processes.agree(list(states[0].clock))
        return EngineState(step=states[0].step, clock=(clock[0], clock[1]), **whole)


def _rows_of(state: EngineState, own: slice) -> EngineState:
    """The state of some of the chains."""
    rows = {name: getattr(state, name) for name in BY_CHAIN}
    return dataclasses.replace(state, **{name: None if x is None else x[own] for name, x in rows.items()})
