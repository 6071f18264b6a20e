"""Shares of rails: whole numbers of 1024, by which `cc/transport/rails/rail_table.h` cuts messages into segments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

UNITS: Final = 1024  # the sum of the shares of all rails


class SharesFrom(NamedTuple):
    """The shares of calls of at least `min_bytes` bytes, by the name of their rail; they sum to UNITS."""

    min_bytes: int
    shares: Mapping[str, int]


def in_units(weights: Sequence[float]) -> list[int]:
    """Shares that are to each other as the weights, of which one is above 0; each is less than 1 off."""
    total = sum(weights)
    edges = [round(UNITS * each / total) for each in itertools.accumulate(weights, initial=0.0)]
    return [high - low for low, high in itertools.pairwise(edges)]
