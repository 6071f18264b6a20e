"""How ranges of sizes are found that one choice serves: which sizes are looked at, and which choice serves some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

SMALLEST, LARGEST = 2**8, 2**34  # bytes; the choice there holds below and above
TOLERANCE: Final = 1.02  # how much longer than the best a range's choice may take for a size in it

Choice = TypeVar("Choice")


def sizes_between(known: Iterable[int], per_octave: int) -> list[int]:
    """The sizes that are looked at, so many per octave, up to the largest that is known to occur."""
    largest = max([LARGEST, *known]).bit_length()
    steps = range(per_octave * (SMALLEST.bit_length() - 1), per_octave * largest + 1)
    return [round(2 ** (step / per_octave)) for step in steps]


def common_choice(
    sizes: Sequence[int], choices: Sequence[Choice], serves: Callable[[Choice, int, Choice], bool]
) -> int | None:
    """The index of a choice that serves all the sizes, or None.

    The middle one is tried first; where the delay only just covers the others' part, the last one is the more robust.

    Args:
      sizes: neighbouring sizes.
      choices: the best for each of them.
      serves: whether a choice takes little longer for a size than the best one there.
    """
    for index in (len(sizes) // 2, len(sizes) - 1, 0):
        if all(serves(choices[index], nbytes, best) for nbytes, best in zip(sizes, choices, strict=True)):
            return index
    return None
