"""The ways to distribute a program: the same steps by lax or plain jit, and by jaxcomm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.newcomer.programs_patterns import AXIS, Gradients, Program


class Way(NamedTuple):
    """A way to distribute.

    Attributes:
      manual: the program's step runs on each rank.
      step: (the library of the averages, program) -> a jitted step of (state, x, y).
      mesh: where state and batch are placed; None leaves them where they are.
    """

    manual: bool
    step: Callable[[Any, Program], Callable[..., Any]]
    mesh: jax.sharding.Mesh | None = None


def mesh_of(*sizes: int, kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh(sizes, (AXIS, "model")[: len(sizes)], axis_types=(kind,) * len(sizes))


def on_ranks(library: Any) -> Gradients:
    """Inside pmap or shard_map: each rank's gradients, then pmean, of layers' states, too."""
    mean = partial(library.pmean, axis_name=AXIS)

    def value_and_grad(loss: Any, has_aux: bool = False, specs: Any = None) -> Callable[..., Any]:
        del specs

        def averaged(params: Any, *rest: Any) -> Any:
            varying = jax.tree.map(lambda leaf: to_varying(leaf), params)
            value, grads = jax.value_and_grad(loss, has_aux=has_aux)(varying, *rest)
            if not has_aux:
                return mean((value, grads))
            value, (state, outputs) = value
            value, state, grads = mean((value, state, grads))
            return (value, (state, outputs)), grads

        return averaged

    return Gradients(value_and_grad, mean, AXIS, manual=True)


def to_varying(leaf: Any) -> Any:
    """With check_vma, a parameter whose gradient is the rank's own; jax.grad would sum it by lax otherwise."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    known = jax.typeof(leaf).manual_axis_type.varying
    return jax.lax.pcast(leaf, AXIS, to="varying") if AXIS in manual and AXIS not in known else leaf


def under_jit(library: Any) -> Gradients:
    """In a step that jit partitions: jax's gradients, or jaxcomm's."""
    if library is jax.lax:
        plain = lambda loss, has_aux=False, specs=None: jax.value_and_grad(loss, has_aux=has_aux)  # noqa: E731
        return Gradients(plain, same, None, manual=False)

    def value_and_grad(loss: Any, has_aux: bool = False, specs: Any = None) -> Callable[..., Any]:
        in_specs = None if specs is None else tuple(P() if name is None else P(name) for name in specs)
        return jaxcomm.value_and_grad(loss, AXIS, has_aux=has_aux, in_specs=in_specs)

    return Gradients(value_and_grad, partial(jaxcomm.pmean, axis_name=AXIS), AXIS, manual=False)


def same(x: Any) -> Any:
    return x


def by_pmap(library: Any, program: Program) -> Callable[..., Any]:
    ranks = jax.device_count()
    step = jax.pmap(partial(program.step, on_ranks(library)), axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
    return lambda state, *batch: step(state, *[leaf.reshape(ranks, -1, *leaf.shape[1:]) for leaf in batch])


def by_shard_map(check_vma: bool) -> Callable[[Any, Program], Callable[..., Any]]:
    def make(library: Any, program: Program) -> Callable[..., Any]:
        specs = (P(), P(AXIS), P(AXIS))
        step = partial(program.step, on_ranks(library))
        mapped = jax.shard_map(step, mesh=mesh_of(8), in_specs=specs, out_specs=P(), check_vma=check_vma)
        return jax.jit(mapped)

    return make


def by_jit(library: Any, program: Program) -> Callable[..., Any]:
    return jax.jit(partial(program.step, under_jit(library)))


WAYS = {
    "pmap": Way(True, by_pmap),
    "shard_map": Way(True, by_shard_map(False), mesh_of(8)),
    "shard_map, check_vma": Way(True, by_shard_map(True), mesh_of(8)),
    "jit": Way(False, by_jit, mesh_of(8)),
    "jit, explicit": Way(False, by_jit, mesh_of(8, kind=AxisType.Explicit)),
    "jit, data x model": Way(False, by_jit, mesh_of(4, 2)),
    "jit, data x model, explicit": Way(False, by_jit, mesh_of(4, 2, kind=AxisType.Explicit)),
}


def cases(programs: dict[str, Program]) -> list[tuple[str, str]]:
    """The programs, each with all ways that it can be distributed."""
    return [(name, way) for name, program in programs.items() for way in WAYS if WAYS[way].manual or not program.manual]


def started(program: Program, units: int) -> Any:
    """The state that a program starts with, all of it arrays."""
    return jax.tree.map(jax.numpy.asarray, program.start(units))


def placed(way: Way, state: Any, batch: Any) -> tuple[Any, Any]:
    """The state and the batch on a way's mesh: kernels split over the model's axis, where XLA partitions over one."""
    if way.mesh is None:
        return state, batch
    columns = "model" in way.mesh.axis_names and AxisType.Explicit not in way.mesh.axis_types

    def place(leaf: Any) -> Any:
        split = columns and leaf.ndim > 1 and leaf.shape[-1] % 2 == 0
        spec = P(*[None] * (leaf.ndim - 1), "model") if split else P()
        return jax.device_put(leaf, NamedSharding(way.mesh, spec))

    rows = NamedSharding(way.mesh, P(AXIS))
    return jax.tree.map(place, state), jax.tree.map(lambda leaf: jax.device_put(leaf, rows), batch)


def batch_of(rows: int, features: int, classes: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((rows, features)).astype(np.float32)
    return x, (np.abs(x.sum(1) * 2).astype(np.int32)) % classes
