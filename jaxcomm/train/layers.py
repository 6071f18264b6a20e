"""The tensors of a model in the order in which its forward pass needs them, for profiles and drop policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from jaxcomm.collectives.leaves import leaf_name
from jaxcomm.profile import Layer


def layers(forward: Callable[..., Any], params: Any, *inputs: Any) -> list[Layer]:
    """The floating-point tensors of `params`, in the order in which `forward(params, *inputs)` first uses them.

    Nothing is computed, so shapes and types (`jax.ShapeDtypeStruct`) suffice as arrays. Unused tensors are last. Put
    the layers into a profile with `jaxcomm.profile.with_layers`, or pass them to `Drop.front_first`.

    Args:
      forward: the model, such as Flax's `model.apply`.
      params: the model's parameters, in the tree for which gradients are computed.
      inputs: further arguments.

    Returns:
      Layers with the names that `jax.tree_util.keystr` gives with `simple=True, separator="/"`.

    Example:
      >>> params = {"back": jnp.zeros((4, 1)), "front": jnp.zeros((2, 4))}
      >>> found = jaxcomm.train.layers(lambda params, x: x @ params["front"] @ params["back"], params, jnp.zeros(2))
      >>> [(layer.name, layer.bytes) for layer in found]
      [('front', 32), ('back', 16)]
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    jaxpr = jax.make_jaxpr(forward)(params, *inputs).jaxpr
    tensors = {var: place for place, var in enumerate(jaxpr.invars[: len(paths)])}
    order = dict.fromkeys([*_used(jaxpr, tensors), *range(len(paths))])
    return [
        Layer(name=leaf_name(path), bytes=leaf.size * leaf.dtype.itemsize)
        for path, leaf in (paths[place] for place in order)
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) and leaf.size
    ]


def _used(jaxpr: Jaxpr, tensors: dict[Var, int]) -> Iterator[int]:
    """The tensors in the order of their use, possibly repeated. A converted tensor counts as the same tensor."""
    tensors = dict(tensors)
    for equation in jaxpr.eqns:
        here = [None if isinstance(x, Literal) else tensors.get(x) for x in equation.invars]
        found = [place for place in here if place is not None]
        if found and equation.primitive.name in ("convert_element_type", "copy", "reshape", "transpose"):
            tensors[equation.outvars[0]] = found[0]
            continue
        for inner in _bodies(equation.params.values()):
            if len(inner.invars) == len(here):
                given = zip(inner.invars, here, strict=True)
                yield from _used(inner, {var: place for var, place in given if place is not None})
        yield from found


def _bodies(values: Any) -> Iterator[Jaxpr]:
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
