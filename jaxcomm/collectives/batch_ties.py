"""Whether arrays are of a loss's batch, by the loss itself: it cannot be traced with a part of its batch left whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcomm.collectives.batch_split import WHERE, Split, entry_axes, ranks_of


class Guess(NamedTuple):
    """An array of a Split whose PartitionSpec the caller did not state.

    Attributes:
      place: in the Split's specs.
      name: of the argument, for messages.
      whole: it has the batch's rows, but lies whole on every rank; otherwise it is to be split.
    """

    place: int
    name: str
    whole: bool


def settled(split: Split, arrays: Sequence[Any], guesses: Sequence[Guess], function: Callable[..., Any]) -> Split:
    """The split after its guesses are checked, each by one trace of `function` with that array whole.

    Where the trace fails, the array is tied to the others, and is of the batch. An array that lies whole is split only
    if it is tied.

    Raises:
      ValueError: an array that is to be split is tied to no other, such as a table that the batch looks up; or the
        function combines the one row of each rank with an array that it closes over.
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
    """How to state which arguments are the batch, for messages."""
    spec = f"P({(names[0] if len(names) == 1 else names)!r})"
    return (
        f"in_specs=(…), one for each positional argument: {spec} for the batch, P() for what all ranks use whole. "
        f"Or place the arguments of the jitted step so: jax.device_put(x, NamedSharding(mesh, {spec}))."
    )


class _Trial(NamedTuple):
    """A function and its arrays, to be traced with other splits than theirs."""

    arrays: Sequence[Any]
    function: Callable[..., Any]

    def used(self, split: Split, longer: Split | None = None) -> list[bool] | None:
        """The arrays that the function's results depend on; None if it cannot be traced with this split.

        The arrays are twice as long where `longer` splits them.
        """
        arrays = self.arrays if longer is None else list(map(_longer, self.arrays, longer.specs))
        try:
            traced = jax.make_jaxpr(lambda *arrays: split.map(self.function, P(), arrays))(*arrays)
        except Exception:  # losses and their libraries raise errors of their own on shapes that do not fit
            return None
        used: list[bool] = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
        return used

    def ties(self, place: int, split: Split) -> bool:
        """Whether that array must be split as the others are, or does not matter.

        One row, of a rank or of its micro-batch, combines with any number by broadcasting; two do not.
        """
        whole = split.with_specs({place: P()})
        used = self.used(whole)
        if used is None or not used[place]:
            return True
        return self.used(whole, longer=split) is None and self.used(split, longer=split) is not None


def _with_tied(split: Split, whole: Sequence[int], trial: _Trial) -> Split:
    """With those arrays split, of those that lie whole, that must be."""
    tied = split.with_specs(dict.fromkeys(whole, P(split.names)))
    if not whole or trial.used(tied) is None:  # none, or one that is no batch, or an error that the next trace raises
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
