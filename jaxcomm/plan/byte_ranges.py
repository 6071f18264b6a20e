"""Checks that the byte ranges of a plan's entries cover every size exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class EntryRange(Protocol):
    """The sizes from `min_bytes` to `max_bytes`, both included. A `max_bytes` of null means no limit."""

    @property
    def min_bytes(self) -> int: ...

    @property
    def max_bytes(self) -> int | None: ...


def check_ranges(name: str, entries: Sequence[EntryRange]) -> None:
    """Raises ValueError unless every size is in exactly one entry."""
    if entries and entries[0].min_bytes != 0:
        raise ValueError(f"{name}[0].min_bytes is {entries[0].min_bytes}; the first entry must begin at 0")
    for i, entry in enumerate(entries):
        end = entry.max_bytes
        if end is None:
            if i + 1 < len(entries):
                raise ValueError(f"{name}[{i}].max_bytes is null; only the last entry may have no limit")
            break
        if end < entry.min_bytes:
            raise ValueError(f"{name}[{i}].max_bytes is {end}, below its min_bytes {entry.min_bytes}")
        if i + 1 == len(entries):
            raise ValueError(f"{name}[{i}].max_bytes is {end}; the last entry must have no limit (null)")
        if entries[i + 1].min_bytes != end + 1:
            raise ValueError(
                f"{name}[{i + 1}].min_bytes is {entries[i + 1].min_bytes}; the entry before ends at {end}, "
                f"so it must be {end + 1}"
            )
