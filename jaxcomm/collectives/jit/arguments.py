"""Finds the batch among a loss's arguments: by the caller's specs, by the arrays' shardings, or by their rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm import jax_compat
from jaxcomm.collectives.jit.split import WHERE, Split, axes_of, entry_axes, is_array, leaf_specs, ranks_of
from jaxcomm.collectives.jit.ties import Guess, stating
from jaxcomm.errors import JaxcommError


def split_arguments(
    names: tuple[Any, ...],
    mesh: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shared: Collection[int],
    in_specs: Any,
) -> tuple[Split, list[Any], tuple[Guess, ...]]:
    """Returns the split of a call's arguments over `names`, the leaves that are arrays, and the guesses for `settled`.

    Arguments and errors are as for `value_and_grad`. `shared` has the positions of the arguments that are the same on
    all ranks.
    """
    paths, tree = jax.tree.flatten_with_path((args, kwargs))
    mesh = _mesh(names, mesh, [leaf for _, leaf in paths])
    explicit = AxisType.Explicit in (mesh.axis_types[mesh.axis_names.index(name)] for name in names)
    given = iter(leaf_specs("in_specs", in_specs, args, "positional argument")) if in_specs is not None else None
    arrays: list[Any] = []
    leaf_names: list[str] = []
    specs: list[P | None] = []
    open_: list[int] = []
    fixed = []
    for i, (path, leaf) in enumerate(paths):
        positional = path[0].idx == 0
        wanted = next(given) if given is not None and positional else None
        name = _name(path)
        if is_shared := positional and path[1].idx in shared:
            _check_shared(name, wanted)
        if not is_array(leaf):
            _check_setting(name, leaf)
            fixed.append((i, type(leaf), leaf))
            continue
        if not is_shared and wanted is None and np.ndim(leaf):
            open_.append(len(arrays))
            wanted = _spec_of_type(leaf, names) if explicit else _spec_of_place(leaf, names, mesh)
        else:
            wanted = P() if is_shared or wanted is None else wanted
        arrays.append(leaf)
        leaf_names.append(name)
        specs.append(wanted)
    found, guesses = _guessed(names, mesh, arrays, leaf_names, specs, open_, explicit)
    for name, leaf, spec in zip(leaf_names, arrays, found, strict=True):
        _check_spec(name, leaf, spec, names, mesh)
    if missing := [name for name in names if not any(name in axes_of(spec) for spec in found)]:
        cure = "shard the batch over it, or give in_specs" if explicit else "make the batch an argument of the loss"
        raise ValueError(
            f"{WHERE}: no argument is split over {missing[0]!r}, so every rank would compute the same.\n  Cure: {cure}."
        )
    return Split(names, mesh, tree, tuple(fixed), tuple(found)), arrays, guesses


def _guessed(
    names: tuple[Any, ...],
    mesh: Any,
    arrays: Sequence[Any],
    leaf_names: Sequence[str],
    specs: Sequence[P | None],
    open_: Sequence[int],
    explicit: bool,
) -> tuple[list[P], tuple[Guess, ...]]:
    """All specs, with a guess in place of each None, and the guesses.

    The guess is that an array of unknown sharding belongs to the batch if it has the batch's number of rows.

    Raises:
      ValueError: arrays of unknown sharding differ in their first dimension.
    """
    specs = list(specs)
    if not explicit and not any(spec and axes_of(spec) for spec in specs):
        for i in open_:  # under jax.set_mesh every new array is replicated, so replication does not show its role
            specs[i] = None
    unknown = [i for i in open_ if specs[i] is None]
    rows = {np.shape(x)[0] for x, spec in zip(arrays, specs, strict=True) if spec and entry_axes(spec[0])}
    if unknown and ranks_of(mesh, names) > 1:
        first = {i: np.shape(arrays[i])[0] for i in unknown}
        if unlike := [i for i in unknown if first[i] not in (rows or {first[unknown[0]]})]:
            shown = unlike if rows else [unknown[0], *unlike]
            shapes = ", ".join(f"{leaf_names[i]} has the shape {np.shape(arrays[i])}" for i in shown[:4])
            batch = f"; the batch has {', '.join(map(str, sorted(rows)))} rows" if rows else ""
            raise ValueError(
                f"{WHERE}: {shapes}{batch}. Nothing states which of these are the batch that "
                f"{', '.join(map(repr, names))} splits.\n  Cure: {stating(names)}"
            )
    found = [P(names) if spec is None else spec for spec in specs]
    rows |= {np.shape(arrays[i])[0] for i in unknown}
    split = [i for i in open_ if axes_of(found[i])]
    whole = [i for i in open_ if i not in split and np.shape(arrays[i])[0] in rows]
    guesses = [Guess(i, leaf_names[i], False) for i in split]
    guesses += [Guess(i, leaf_names[i], True) for i in whole]
    return found, tuple(guesses)


def _mesh(names: tuple[Any, ...], mesh: Any, leaves: Sequence[Any]) -> Any:
    context = jax.sharding.get_abstract_mesh()
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    meshes = [context, *(jax.typeof(x).sharding.mesh for x in arrays if isinstance(x, jax.core.Tracer))]
    # Meshes with devices come last: the devices of an array that a jitted step closes over must not become the step's
    # devices.
    places = map(jax_compat.sharding_of, arrays)
    meshes += [sharding.mesh for sharding in places if isinstance(sharding, NamedSharding)]
    found = mesh if mesh is not None else next((each for each in meshes if not each.empty), None)
    if found is None:
        raise JaxcommError(
            f"{WHERE}: there is no mesh here.\n"
            "  Cure: call it under `with jax.set_mesh(mesh):`, give it `mesh=`, or arguments that lie on a mesh."
        )
    if missing := [name for name in names if name not in found.axis_names]:
        raise NameError(
            f"{WHERE}: the mesh has no axis {missing[0]!r}; it has {found.axis_names}.\n"
            "  Cure: name the axis of the mesh that the batch is split over."
        )
    return found


def _check_setting(name: str, leaf: Any) -> None:
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(
            f"{WHERE}: {name} is of type {type(leaf).__name__}, which is no array and has no hash.\n"
            "  Cure: make it hashable, as @dataclass(frozen=True) does, or let the loss close over it."
        ) from error


def _check_shared(name: str, spec: P | None) -> None:
    if spec is not None and axes_of(spec):
        raise ValueError(
            f"{WHERE}: in_specs split {name} as {spec}, but differentiated arguments must be the same on all ranks.\n"
            "  Cure: use P() for it. Split parameters need jaxcomm.all_gather and psum_scatter in a shard_map."
        )


def _check_spec(name: str, leaf: Any, spec: P, names: tuple[Any, ...], mesh: Any) -> None:
    if others := [other for other in axes_of(spec) if other not in names]:
        raise ValueError(
            f"{WHERE}: in_specs split {name} over {others[0]!r}; they can name {', '.join(map(repr, names))} only.\n"
            "  Cure: leave the others out; arrays stay split over them as they are."
        )
    shape = np.shape(leaf)
    for dimension, entry in enumerate(spec):
        over = entry_axes(entry)
        ranks = ranks_of(mesh, over)
        if dimension >= len(shape) or shape[dimension] % ranks:
            raise ValueError(
                f"{WHERE}: {name} has the shape {shape}; {ranks} ranks of {', '.join(map(repr, over))} do not divide "
                f"dimension {dimension}.\n"
                "  Cure: a batch size that they divide; or, for an argument outside the batch, P() in in_specs "
                "(for positional arguments only)."
            )


def _name(path: Any) -> str:
    """The name of an argument's leaf in error texts: "argument 1['image']"."""
    return f"argument {path[1].idx if path[0].idx == 0 else path[1].key!r}{jax.tree_util.keystr(path[2:])}"


def _spec_of_place(x: Any, names: tuple[Any, ...], mesh: Any) -> P | None:
    """The spec over `names` that the array's sharding states, or None if the sharding is unknown.

    If the sharding splits only one dimension, this dimension also gets the names that the sharding lacks.
    """
    sharding = jax_compat.sharding_of(x)
    if not isinstance(sharding, NamedSharding) or any(sharding.mesh.shape.get(n) != mesh.shape[n] for n in names):
        return None
    entries = [tuple(n for n in entry_axes(entry) if n in names) or None for entry in sharding.spec]
    missing = tuple(n for n in names if not any(entry and n in entry for entry in entries))
    split = [i for i, entry in enumerate(entries) if entry]
    if len(split) == 1:
        entries[split[0]] = (*(entries[split[0]] or ()), *missing)
    return P(*entries)


def _spec_of_type(x: Any, names: tuple[Any, ...]) -> P:
    """The spec over `names` that an array's type states."""
    return P(*[tuple(n for n in entry_axes(entry) if n in names) or None for entry in jax.typeof(x).sharding.spec])
