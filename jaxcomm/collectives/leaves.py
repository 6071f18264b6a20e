"""A tree's leaves: their names in plans, profiles and drops, and their division into runs, each for one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax


def leaf_name(path: Any) -> str:
    """The name of the leaf at this key path, such as "layer/kernel"."""
    name: str = jax.tree_util.keystr(path, simple=True, separator="/")
    return name


def runs_of(leaves: Sequence[jax.Array], nbytes: int) -> Iterator[slice]:
    """Cuts the leaves, in their order, into runs. A run ends with the leaf that brings it to `nbytes` or more.

    The last run may have fewer bytes.
    """
    first = held = 0
    for end, leaf in enumerate(leaves, 1):
        held += leaf.nbytes
        if held >= nbytes or end == len(leaves):
            yield slice(first, end)
            first, held = end, 0
