"""Finds by tracing whether an array belongs to a loss's batch.

The loss is traced with this array whole and the rest of the batch split. If the array belongs to the batch, this trace
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcomm.collectives.jit.split import WHERE, Split, entry_axes, ranks_of


class Guess(NamedTuple):
    """An array of a Split whose PartitionSpec the caller did not state.

    Attributes:
      place: the array's index in the Split's specs.
      name: the argument's name in error texts.
      whole: True: the array has the batch's number of rows, but is whole on every rank. False: the array is split.
    """

    place: int
    name: str
    whole: bool


def settled(split: Split, arrays: Sequence[Any], guesses: Sequence[Guess], function: Callable[..., Any]) -> Split:
    """Checks each guess by a trace of `function` in which the guessed array is whole, and returns the corrected split.

    If the trace fails, the array is tied to the other arrays and belongs to the batch. An array that the guess leaves
    whole is split only if it is tied.

    Raises:
      ValueError: an array that is to be split is tied to no other array; it may be a table in which the batch looks up
        rows. Or each rank has one row of the batch, and `function` combines this row with a closed-over array.
    """
    if ranks_of(split.mesh, split.names) == 1:
        return split
    trial = _Trial(arrays, function)
    split = _with_tied(split, [guess.place for guess in guesses if guess.whole], trial)
    several = sum(bool(_split_dimensions(spec)) for spec in split.specs) > 1
    untied = [guess.name for guess in guesses if several and not guess.whole and not trial.ties(guess.place, split)]
    if untied:
        raise ValueError(
            f"{WHERE}: the loss does not combine {' and '.join(untied)} row by row with the rest of the batch: nothing "
            f"shows whether it is of the batch, or a table, or a batch of its own.\n  Cure: {stating(split.names)}"
        )
    if _has_one_row(split, arrays) and trial.used(split) is not None and trial.used(split, longer=split) is None:
        raise ValueError(
            f"{WHERE}: the loss takes a batch of one row for each rank, but not of two: it may combine the row with an "
            "array of the whole batch that it closes over.\n  Cure: pass that array as an argument."
        )
    return split


def stating(names: tuple[Any, ...]) -> str:
    """Says, for error texts, how the caller can state which arguments are the batch."""
    spec = f"P({(names[0] if len(names) == 1 else names)!r})"
    return (
        f"in_specs=(…), one for each positional argument: {spec} for the batch, P() for the others. "
        f"Or place the arguments of the jitted step so: jax.device_put(x, NamedSharding(mesh, {spec}))."
    )


class _Trial(NamedTuple):
    """A function and its arrays, for traces with different splits."""

    arrays: Sequence[Any]
    function: Callable[..., Any]

    def used(self, split: Split, longer: Split | None = None) -> list[bool] | None:
        """For each array, whether the function's results depend on it; None if tracing fails with this split.

        Each dimension that `longer` splits has twice its size in the trace.
        """
        arrays = self.arrays if longer is None else list(map(_longer, self.arrays, longer.specs))
        try:
            traced = jax.make_jaxpr(lambda *arrays: split.map(self.function, P(), arrays))(*arrays)
        except Exception:  # a loss or its libraries may raise any error if shapes do not fit
            return None
        used: list[bool] = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
        return used

    def ties(self, place: int, split: Split) -> bool:
        """Whether the array at `place` must be split as the other arrays are, or does not affect the results.

        If each rank or micro-batch has a single row, the first trace may succeed although the arrays are tied, because
        a single row broadcasts to any number of rows. A second trace therefore has twice the rows.
        """
        whole = split.with_specs({place: P()})
        used = self.used(whole)
        if used is None or not used[place]:
            return True
        return self.used(whole, longer=split) is None and self.used(split, longer=split) is not None


def _with_tied(split: Split, whole: Sequence[int], trial: _Trial) -> Split:
    """Also splits those arrays at the places `whole` that are tied to the batch. Returns the new split."""
    tied = split.with_specs(dict.fromkeys(whole, P(split.names)))
    # If this trace fails, because an array in `whole` does not belong to the batch or because the function has an
    # error, the split stays as it is.
    if not whole or trial.used(tied) is None:
        return split
    for place in whole:
        if not trial.ties(place, tied):
            tied = tied.with_specs({place: P()})
    return tied


def _has_one_row(split: Split, arrays: Sequence[Any]) -> bool:
    sizes = [np.shape(x)[i] for x, spec in zip(arrays, split.specs, strict=True) for i in _split_dimensions(spec)]
    return ranks_of(split.mesh, split.names) in sizes


def _split_dimensions(spec: P) -> set[int]:
    return {i for i, entry in enumerate(spec) if entry_axes(entry)}


def _longer(x: Any, spec: P) -> Any:
    if not (split := _split_dimensions(spec)):
        return x
    shape = tuple(2 * size if i in split else size for i, size in enumerate(np.shape(x)))
    kind = jax.typeof(x)
    sharding = kind.sharding if AxisType.Explicit in kind.sharding.mesh.axis_types else None
    return jax.ShapeDtypeStruct(shape, kind.dtype, sharding=sharding, weak_type=kind.weak_type)
