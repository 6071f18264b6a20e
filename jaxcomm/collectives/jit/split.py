"""Runs a function on each rank's part of arguments that are split over a mesh axis, and joins the results."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm.collectives.jit.manual_axes import left_out_of_shardings
from jaxcomm.errors import JaxcommError

WHERE = "jaxcomm.value_and_grad"


class Split(NamedTuple):
    """The split of a call's arguments. Hashable, because `jax.jit` compiles once for each split.

    Attributes:
      names: the axes over which the arguments are split.
      mesh: the mesh of these axes.
      tree: the structure of (args, kwargs).
      fixed: place, type and value of each leaf that is not an array; the type distinguishes 1 from True.
      specs: the specs of the arrays, in order.
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
            with left_out_of_shardings(self.names), _no_closures():
                return function(*args, **kwargs)

        placed = [_placed(x, self.names, spec, self.mesh) for x, spec in zip(arrays, self.specs, strict=True)]
        # check_vma would refuse losses that were not written for a shard_map, such as a scan that starts from zeros.
        mapped = jax.shard_map(
            on_rank,
            mesh=self.mesh,
            in_specs=self.specs,
            out_specs=out_specs,
            axis_names=set(self.names),
            check_vma=False,
        )
        return mapped(*placed)

    def with_specs(self, specs: Mapping[int, P]) -> Split:
        """Returns the split with other specs for the arrays at these places."""
        return self._replace(specs=tuple(specs.get(i, spec) for i, spec in enumerate(self.specs)))

    def result_specs(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """The spec of each result of `function`, which splits the dimension that grows from a rank's part to the batch.

        Raises:
          ValueError: several dimensions of a result grow, or a dimension grows by a factor other than the number of
            ranks.
          TypeError: a result does not grow and has no mean.
        """
        everything = self._replace(specs=(P(),) * len(self.specs))
        parts, wholes = (
            jax.eval_shape(lambda *arrays, of=of: of.map(function, P(), arrays), *arrays) for of in (self, everything)
        )
        return jax.tree.map_with_path(self._result_spec, parts, wholes)

    def _result_spec(self, path: Any, part: Any, whole: Any) -> P:
        ranks = ranks_of(self.mesh, self.names)
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
        # The orders in which the axes split the batch. An order may differ from the order of `names`.
        orders = {entry for spec in self.specs for entry in map(entry_axes, spec) if {*entry} == {*self.names}}
        alike = part.ndim == whole.ndim and len(grown) == len(orders) == 1
        if not alike or part.shape[grown[0]] * ranks != whole.shape[grown[0]]:
            raise ValueError(
                f"{WHERE}: {name} has the shape {part.shape} on a rank and {whole.shape} for the whole batch, which "
                "the ranks' parts do not make up.\n  Cure: leave it out, or say by aux_specs how they are put together."
            )
        return P(*[None] * grown[0], orders.pop())


@contextlib.contextmanager
def _no_closures() -> Iterator[None]:
    """If a loss closes over an array whose type names the axes, replaces JAX's error by an error with a cure."""
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        if not any(text in str(error) for text in ("Closing over inputs to shard_map", "should match the aval mesh")):
            raise
        raise JaxcommError(
            f"{WHERE}: the loss closes over an array of a mesh whose axes are explicit.\n"
            "  Cure: pass it as an argument; its type states how it is split."
        ) from error


def like_parameters(params: Any, grads: Iterator[Any]) -> Any:
    """A tree like `params` with the gradients of its floating-point leaves, each sharded like its parameter."""

    def gradient(leaf: Any) -> Any:
        if not is_inexact(leaf):
            return np.zeros(np.shape(leaf), jax.dtypes.float0)
        return like_parameter(next(grads), leaf)

    return jax.tree.map(gradient, params)


def like_parameter(gradient: Any, parameter: Any) -> Any:
    """The gradient, sharded over explicit axes like its parameter."""
    return _of_type(gradient, jax.typeof(parameter).sharding)


def leaf_specs(name: str, specs: Any, tree: Any, each: str) -> list[P]:
    """The PartitionSpec of each leaf of a tree, from specs of leaves or of whole branches.

    Args:
      name: the name of `specs`, for error texts: "in_specs".
      specs: a prefix of the tree.
      tree: the tree whose leaves get the specs.
      each: the name of a branch, for error texts: "positional argument".
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


def is_inexact(leaf: Any) -> bool:
    """Whether the leaf is a real or complex floating-point number, or an array of these."""
    return jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact)


def is_array(leaf: Any) -> bool:
    """Whether the leaf is an array of JAX or NumPy."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def ranks_of(mesh: Any, names: Sequence[Any]) -> int:
    """The number of ranks of all axes together."""
    return math.prod(mesh.shape[name] for name in names)


def entry_axes(entry: Any) -> tuple[Any, ...]:
    """The axes of one dimension of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def axes_of(spec: P) -> tuple[Any, ...]:
    """The axes that a PartitionSpec names."""
    return tuple(name for entry in spec for name in entry_axes(entry))


def _placed(x: Any, names: tuple[Any, ...], spec: P, mesh: Any) -> Any:
    """Reshards an array so that its type states the split in `spec`, as far as the split's axes are explicit."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    typed = [tuple(n for n in entry_axes(entry) if kinds[n] == AxisType.Explicit) for entry in spec]
    split = typed + [()] * (np.ndim(x) - len(spec))
    rest = [tuple(n for n in entry_axes(entry) if n not in names) for entry in jax.typeof(x).sharding.spec]
    entries = [mine + other or None for mine, other in zip(split, rest, strict=True)]
    return _of_type(x, NamedSharding(getattr(mesh, "abstract_mesh", mesh), P(*entries)))


def _of_type(x: Any, sharding: Any) -> Any:
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jax.sharding.reshard(x, sharding) if explicit and jax.typeof(x).sharding != sharding else x
