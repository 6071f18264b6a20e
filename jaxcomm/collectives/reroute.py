"""Runs a function with some of its primitives replaced, so that jaxcomm has lax's semantics without copying lax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, Var

Replacement = Callable[[dict[str, Any], Sequence[jax.Array]], Sequence[jax.Array]]


def reroute(function: Callable[..., Any], replacements: Mapping[Primitive, Replacement]) -> Callable[..., Any]:
    """Returns `function` with the binds of some primitives replaced by calls of `replacements`.

    Traces `function` and repeats its operations, one for one, in the caller's own trace. Independent binds with the
    same primitive and parameters, such as the binds for the arrays of a tree, become one call.

    Args:
      function: the function to run. Results other than arrays, such as the sizes of axes, are returned as they are.
      replacements: maps primitives to functions. Each primitive must have one operand and one result. Its function
        takes the primitive's parameters and the operands of several binds, and returns the results of these binds.
    """

    def rerouted(*args: Any) -> Any:
        leaves: list[Any]
        tree: Any
        leaves, tree = jax.tree.flatten(args)
        tracers = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)}
        results: list[Any] = []
        result_tree: Any = None

        def run(*inner: jax.Array) -> list[Any]:
            nonlocal results, result_tree
            merged = dict(enumerate(leaves)) | dict(zip(tracers, inner, strict=True))  # other leaves stay constants
            results, result_tree = jax.tree.flatten(function(*tree.unflatten(merged.values())))
            computed = [result for result in results if isinstance(result, jax.core.Tracer)]
            results = [_COMPUTED if isinstance(result, jax.core.Tracer) else result for result in results]
            return computed

        jaxpr = jax.make_jaxpr(run)(*tracers.values())
        computed = iter(_evaluate(jaxpr, list(tracers.values()), replacements))
        return result_tree.unflatten([next(computed) if result is _COMPUTED else result for result in results])

    return rerouted


_COMPUTED = object()


def _evaluate(closed: ClosedJaxpr, args: Sequence[Any], replacements: Mapping[Primitive, Replacement]) -> list[Any]:
    jaxpr = closed.jaxpr
    values: dict[Var, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    waiting: list[tuple[JaxprEqn, Any]] = []  # binds to replace, each with its operand

    def read(atom: Var | Literal) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in values:  # the result of a bind that is still waiting
            values.update(_replace(waiting, replacements))
            waiting.clear()
        return values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive in replacements:
            waiting.append((eqn, operands[0]))
            continue
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        values.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _replace(
    binds: Sequence[tuple[JaxprEqn, Any]], replacements: Mapping[Primitive, Replacement]
) -> Iterator[tuple[Var, Any]]:
    alike: dict[tuple[Primitive, tuple[tuple[str, Any], ...]], list[tuple[JaxprEqn, Any]]] = {}
    for eqn, operand in binds:
        params = {name: tuple(value) if isinstance(value, list) else value for name, value in eqn.params.items()}
        alike.setdefault((eqn.primitive, tuple(sorted(params.items()))), []).append((eqn, operand))
    for (primitive, items), group in alike.items():
        results = replacements[primitive](dict(items), [operand for _, operand in group])
        yield from zip([eqn.outvars[0] for eqn, _ in group], results, strict=True)
