"""Which arguments of a function are split over a mesh axis, and the function on one rank's part of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm.errors import JaxcommError

WHERE = "jaxcomm.value_and_grad"


class Split(NamedTuple):
    """How the arguments of a call are split. Hashable: `jax.jit` compiles once for each.

    Attributes:
      names: the axes.
      mesh: which has them.
      tree: of the arguments, (args, kwargs).
      fixed: its leaves that are no arrays: their places, their types, by which 1 and True differ, and themselves.
      specs: of the others, in order.
    """

    names: tuple[Any, ...]
    mesh: Any
    tree: Any
    fixed: tuple[tuple[int, type, Any], ...]
    specs: tuple[P, ...]

    def map(self, function: Callable[..., Any], out_specs: Any, arrays: Sequence[Any]) -> Any:
        """The results of `function`, called by each rank with its part of the arguments."""

        def on_rank(*arrays: Any) -> Any:
            rest, fixed = iter(arrays), {i: leaf for i, _, leaf in self.fixed}
            leaves = [fixed[i] if i in fixed else next(rest) for i in range(self.tree.num_leaves)]
            args, kwargs = self.tree.unflatten(leaves)
            return function(*args, **kwargs)

        placed = [_placed(x, self.names, spec, self.mesh) for x, spec in zip(arrays, self.specs, strict=True)]
        # check_vma would refuse losses that were not written for a shard_map: a scan that starts from zeros, for one.
        mapped = jax.shard_map(
            on_rank,
            mesh=self.mesh,
            in_specs=self.specs,
            out_specs=out_specs,
            axis_names=set(self.names),
            check_vma=False,
        )
        return mapped(*placed)

    def result_specs(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """For each result of `function` what it is split over: the dimension that grows with what the ranks bring.

        Raises:
          ValueError: several dimensions of a result grow, or not by the number of ranks.
          TypeError: a result does not grow and has no mean.
        """
        everything = self._replace(specs=(P(),) * len(self.specs))
        parts, wholes = (
            jax.eval_shape(lambda *arrays, of=of: of.map(function, P(), arrays), *arrays) for of in (self, everything)
        )
        return jax.tree.map_with_path(self._result_spec, parts, wholes)

    def _result_spec(self, path: Any, part: Any, whole: Any) -> P:
        ranks = _ranks(self.mesh, self.names)
        name = f"the auxiliary output{jax.tree_util.keystr(path)}"
        if part.shape == whole.shape:
            if ranks > 1 and not is_inexact(part):
                raise TypeError(
                    f"{WHERE}: {name} is {part.dtype.name}{list(part.shape)}, which has no mean over the ranks.\n"
                    "  Cure: return a mean of floats, or one value per example; or, if all ranks have the same, "
                    "say so by aux_specs=P()."
                )
            return P()
        grown = [i for i, sizes in enumerate(zip(part.shape, whole.shape, strict=False)) if sizes[0] != sizes[1]]
        # The axes in the order in which they split the batch: in_specs and types may have another than the call.
        orders = {entry for spec in self.specs for entry in map(_entry, spec) if {*entry} == {*self.names}}
        alike = part.ndim == whole.ndim and len(grown) == len(orders) == 1
        if not alike or part.shape[grown[0]] * ranks != whole.shape[grown[0]]:
            raise ValueError(
                f"{WHERE}: {name} has the shape {part.shape} on a rank and {whole.shape} for the whole batch, which "
                "the ranks' parts do not make up.\n  Cure: leave it out, or say by aux_specs how they are put together."
            )
        return P(*[None] * grown[0], orders.pop())


def split_arguments(
    names: tuple[Any, ...],
    mesh: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    params: tuple[int, ...],
    allow_int: bool,
    in_specs: Any,
) -> tuple[Split, list[Any]]:
    """How a call's arguments are split over `names`, and those of their leaves that are arrays.

    Args and errors as in `value_and_grad`; `params` are its argnums.
    """
    paths, tree = jax.tree.flatten_with_path((args, kwargs))
    mesh = _mesh(names, mesh, [leaf for _, leaf in paths])
    explicit = AxisType.Explicit in (mesh.axis_types[mesh.axis_names.index(name)] for name in names)
    given = iter(leaf_specs("in_specs", in_specs, args, "positional argument")) if in_specs is not None else None
    if any(not -len(args) <= i < len(args) for i in params):
        raise TypeError(
            f"{WHERE}: argnums are {params}, but there are {len(args)} positional arguments.\n"
            "  Cure: pass what is differentiated as a positional argument, and count from 0."
        )
    params = tuple(i % len(args) for i in params)
    arrays, specs, fixed = [], [], []
    for i, (path, leaf) in enumerate(paths):
        positional = path[0].idx == 0
        wanted = next(given) if given is not None and positional else None
        name = _name(path)
        if differentiated := positional and path[1].idx in params:
            _check_parameter(name, leaf, wanted, allow_int)
        elif not _is_array(leaf):
            _check_setting(name, leaf)
            fixed.append((i, type(leaf), leaf))
            continue
        spec = P() if differentiated else wanted
        if spec is None:
            spec = _spec_of_type(leaf, names) if explicit else P(names) if np.ndim(leaf) else P()
        _check_spec(name, leaf, spec, names, mesh)
        arrays.append(leaf)
        specs.append(spec)
    if missing := [name for name in names if not any(name in axes_of(spec) for spec in specs)]:
        cure = "shard the batch over it, or give in_specs" if explicit else "make the batch an argument of the loss"
        raise ValueError(
            f"{WHERE}: no argument is split over {missing[0]!r}, so every rank would compute the same.\n  Cure: {cure}."
        )
    return Split(names, mesh, tree, tuple(fixed), tuple(specs)), arrays


def like_parameters(params: Any, grads: Iterator[Any]) -> Any:
    """The gradients of floating-point leaves in the tree of the parameters, with the sharding that their types say."""

    def gradient(leaf: Any) -> Any:
        if not is_inexact(leaf):
            return np.zeros(np.shape(leaf), jax.dtypes.float0)
        return _of_type(next(grads), jax.typeof(leaf).sharding)

    return jax.tree.map(gradient, params)


def _mesh(names: tuple[Any, ...], mesh: Any, leaves: Sequence[Any]) -> Any:
    for name in names:
        if _is_bound(name):
            raise JaxcommError(
                f"{WHERE}: the axis {name!r} is taken already, by the jax.shard_map or jax.vmap around this call.\n"
                f"  Cure: there, call jax.value_and_grad and jaxcomm.pmean(grads, {name!r})."
            )
    context = jax.sharding.get_abstract_mesh()
    meshes = [context, *(getattr(jax.typeof(leaf).sharding, "mesh", context) for leaf in leaves if _is_array(leaf))]
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


def _is_bound(name: Any) -> bool:
    try:
        lax.axis_size(name)
    except NameError:
        return False
    return True


def leaf_specs(name: str, specs: Any, tree: Any, each: str) -> list[P]:
    """The PartitionSpec of each leaf of a tree, from one for each or for whole branches.

    Args:
      name: the argument that `specs` are, for messages: "in_specs".
      specs: a prefix of the tree.
      tree: what they are for.
      each: what its branches are, for messages: "positional argument".
    """
    try:
        found: list[Any] = jax.tree.leaves(jax.tree.broadcast(specs, tree))
        if wrong := [spec for spec in found if not isinstance(spec, P)]:
            raise ValueError(f"{wrong[0]!r} is no PartitionSpec")
    except ValueError as error:
        raise ValueError(
            f"{WHERE}: {name} do not fit the {each}s: {error}\n"
            f"  Cure: give one PartitionSpec for each {each}, or a tree of them."
        ) from error
    return found


def _check_setting(name: str, leaf: Any) -> None:
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(
            f"{WHERE}: {name} is of type {type(leaf).__name__}, which is no array and has no hash.\n"
            "  Cure: make it hashable, as @dataclass(frozen=True) does, or let the loss close over it."
        ) from error


def _check_parameter(name: str, leaf: Any, spec: P | None, allow_int: bool) -> None:
    if not (_is_array(leaf) or isinstance(leaf, int | float | complex)):
        raise TypeError(
            f"{WHERE}: {name} is of type {type(leaf).__name__}; only arrays have a gradient.\n"
            "  Cure: differentiate the model's arrays and pass the rest in another argument, as by eqx.partition or "
            "nnx.split."
        )
    if not (allow_int or is_inexact(leaf)):
        raise TypeError(
            f"{WHERE}: {name} is {jax.typeof(leaf).dtype.name}, which has no gradient.\n"
            "  Cure: pass it in an argument that is not differentiated, or set allow_int=True."
        )
    if spec is not None and axes_of(spec):
        raise ValueError(
            f"{WHERE}: in_specs split {name} as {spec}, but what is differentiated must be the same on all ranks.\n"
            "  Cure: P() for it. For parameters that live split, jaxcomm.all_gather and psum_scatter in a shard_map."
        )


def _check_spec(name: str, leaf: Any, spec: P, names: tuple[Any, ...], mesh: Any) -> None:
    if others := [other for other in axes_of(spec) if other not in names]:
        raise ValueError(
            f"{WHERE}: in_specs split {name} over {others[0]!r}; they can name {', '.join(map(repr, names))} only.\n"
            "  Cure: leave the others out; arrays stay split over them as they are."
        )
    shape = np.shape(leaf)
    for dimension, entry in enumerate(spec):
        over = _entry(entry)
        ranks = _ranks(mesh, over)
        if dimension >= len(shape) or shape[dimension] % ranks:
            raise ValueError(
                f"{WHERE}: {name} has the shape {shape}; {ranks} ranks of {', '.join(map(repr, over))} do not divide "
                f"dimension {dimension}.\n"
                "  Cure: a batch size that they divide; or, for what is no batch, P() in in_specs, which positional "
                "arguments have."
            )


def is_inexact(leaf: Any) -> bool:
    """Whether it is, or has elements that are, real or complex floating-point numbers."""
    return jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _name(path: Any) -> str:
    """An argument's leaf, for messages: "argument 1['image']"."""
    return f"argument {path[1].idx if path[0].idx == 0 else path[1].key!r}{jax.tree_util.keystr(path[2:])}"


def _ranks(mesh: Any, names: Sequence[Any]) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _entry(entry: Any) -> tuple[Any, ...]:
    """The axes of one dimension of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def axes_of(spec: P) -> tuple[Any, ...]:
    """The axes that a PartitionSpec names."""
    return tuple(name for entry in spec for name in _entry(entry))


def _spec_of_type(x: Any, names: tuple[Any, ...]) -> P:
    """What of `names` splits each dimension of an array, by its type."""
    return P(*[tuple(n for n in _entry(entry) if n in names) or None for entry in jax.typeof(x).sharding.spec])


def _placed(x: Any, names: tuple[Any, ...], spec: P, mesh: Any) -> Any:
    """An array whose type says that `names` split it as in `spec`, where types say such things of these axes."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    typed = [tuple(n for n in _entry(entry) if kinds[n] == AxisType.Explicit) for entry in spec]
    split = typed + [()] * (np.ndim(x) - len(spec))
    rest = [tuple(n for n in _entry(entry) if n not in names) for entry in jax.typeof(x).sharding.spec]
    entries = [mine + other or None for mine, other in zip(split, rest, strict=True)]
    return _of_type(x, NamedSharding(getattr(mesh, "abstract_mesh", mesh), P(*entries)))


def _of_type(x: Any, sharding: Any) -> Any:
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jax.sharding.reshard(x, sharding) if explicit and jax.typeof(x).sharding != sharding else x
