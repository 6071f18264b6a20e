"""Removes manual axes from the shardings that a loss states, because these axes split nothing inside the loss."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm import jax_compat

# A parameter and two functions of JAX. The shardings given to them must be on the current mesh, in which the axes that
# are left out are manual.
_ON_ONE_MESH = ("out_sharding", "auto_axes", "explicit_axes")
_manual: ContextVar[frozenset[Any]] = ContextVar("manual", default=frozenset())


@contextlib.contextmanager
def left_out_of_shardings(names: tuple[Any, ...]) -> Iterator[None]:
    """Allows shardings to name these manual axes in functions that are traced inside the `with` statement."""
    _install()
    token = _manual.set(_manual.get() | {*names})
    try:
        yield
    finally:
        _manual.reset(token)


@functools.cache
def _install() -> None:
    jax_compat.rewrite_shardings(_rewritten, _other_axes)


def _rewritten(sharding: Any, where: str) -> Any:
    names = _manual.get()
    if not names:
        return sharding
    mesh = jax.sharding.get_abstract_mesh()
    constraint = where == "with_sharding_constraint"
    if constraint and AxisType.Auto not in mesh.axis_types:
        names = names | {*mesh.explicit_axes}  # on explicit axes, with_sharding_constraint only asserts the type
    if isinstance(sharding, P):
        return _without(names, sharding)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return sharding
    spec = _without(names, sharding.spec)
    if where in _ON_ONE_MESH and [*sharding.mesh.shape.items()] == [*mesh.shape.items()]:
        return NamedSharding(mesh, spec)
    if constraint and not any(spec):
        return NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)  # an empty spec fits every mesh
    return sharding.update(spec=spec)


def _other_axes() -> tuple[Any, ...] | None:
    manual, names = _manual.get(), jax.sharding.get_abstract_mesh().axis_names
    return tuple(name for name in names if name not in manual) if manual else None


def _without(names: frozenset[Any], spec: P) -> P:
    entries = [
        tuple(name for name in entry if name not in names) or None
        if isinstance(entry, tuple)
        else None
        if entry in names
        else entry
        for entry in spec
    ]
    return P(*entries, unreduced=spec.unreduced - names, reduced=spec.reduced - names)
