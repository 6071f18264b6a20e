"""Divides all sizes into few ranges, for all decisions that depend on the size.

Each range has one choice, which is close to the best choice at every size of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, Generic, NamedTuple, TypeVar

SMALLEST, LARGEST = 2**8, 2**34  # bytes; the choices at the ends of the search also hold for all sizes beyond
TOLERANCE: Final = 1.02  # maximum ratio of the time of a range's choice to the best time, at every size of the range

Choice = TypeVar("Choice")
Progress = Callable[[float], object]


class Choices(NamedTuple, Generic[Choice]):
    """How one decision chooses by size.

    Attributes:
      choose: the best choice for one size.
      kind: only choices of the same kind share a range; a range ends at the exact byte where the kind changes.
      serves: serves(choice, nbytes, best): whether `choice` takes at most slightly longer than `best`, the best choice
        at `nbytes`.
      turns: the sizes within a range at which the time of a choice, or the best time, changes its slope; empty if the
        sizes at which the search begins are close enough together.
      finest: a range is not divided further if its last size is less than this multiple of its first size.
      step: ranges are divided at multiples of `step`. The best choice at a multiple also holds for the sizes below it,
        down to the previous multiple.
    """

    choose: Callable[[int], Choice]
    kind: Callable[[Choice], object]
    serves: Callable[[Choice, int, Choice], bool]
    turns: Callable[[Choice, int, int], Iterable[int]] = lambda choice, low, high: ()
    finest: float = 1.02
    step: int = 1


class ByteRange(NamedTuple, Generic[Choice]):
    """One choice, made for `reference` bytes, for the sizes from `low` to `high` inclusive (None: no limit)."""

    low: int
    high: int | None
    reference: int
    choice: Choice


def sizes_between(known: Iterable[int], per_octave: int) -> list[int]:
    """The sizes to choose for, `per_octave` per octave, from `SMALLEST` to beyond `LARGEST` and the largest `known`."""
    largest = max([LARGEST, *known]).bit_length()
    steps = range(per_octave * (SMALLEST.bit_length() - 1), per_octave * largest + 1)
    return [round(2 ** (step / per_octave)) for step in steps]


def byte_ranges(
    choices: Choices[Choice], sizes: Sequence[int], cuts: Iterable[int] = (), progress: Progress = lambda share: None
) -> list[ByteRange[Choice]]:
    """Ranges that cover every size.

    Args:
      choices: how the decision chooses.
      sizes: ascending sizes with which the search begins, and at which every range is checked.
      cuts: sizes at which a range must begin.
      progress: called with the finished share.
    """
    choices = choices._replace(choose=cache(choices.choose))
    cuts = {*cuts}
    lows = sorted({*_lows(choices, sizes, progress), *cuts})
    found: list[ByteRange[Choice]] = []
    for low, following in zip(lows, [*lows[1:], None], strict=True):
        for each in _refined(choices, low, None if following is None else following - 1, sizes[0], sizes[-1]):
            apart = not found or each.low in cuts or choices.kind(found[-1].choice) != choices.kind(each.choice)
            found += [each] if apart else _joined(choices, found.pop(), each, sizes[0], sizes[-1])
    return found


def _refined(
    choices: Choices[Choice], low: int, high: int | None, smallest: int, largest: int
) -> Iterator[ByteRange[Choice]]:
    """The whole range, or several parts of it if no single choice serves the whole range."""
    start, end = max(low, smallest), max(low, largest) if high is None else high
    quarters = _quarters(start, end, choices.step)
    best = [choices.choose(nbytes) for nbytes in quarters]
    found = _common(choices, quarters, best)
    behind = None if found is None else _behind(choices, best[found], start, end)
    if found is None and end < max(choices.finest * start, start + 2):
        found = 2
    if found is not None and behind is None:
        yield ByteRange(low, high, quarters[found], best[found])
        return
    middle = min(quarters[2], (end - 1) // choices.step * choices.step) if behind is None else behind - 1
    yield from _refined(choices, low, middle, smallest, largest)
    yield from _refined(choices, middle + 1, high, smallest, largest)


def _quarters(start: int, end: int, step: int) -> list[int]:
    sizes = (round(start * (end / start) ** (i / 4)) for i in range(5))
    return [min(end, -(-nbytes // step) * step) for nbytes in sizes]


def _joined(
    choices: Choices[Choice], before: ByteRange[Choice], after: ByteRange[Choice], smallest: int, largest: int
) -> list[ByteRange[Choice]]:
    """Two neighbouring ranges of one kind, joined into one range if the choice of one of them serves both."""
    for own, other in ((before, after), (after, before)):
        low, high = max(other.low, smallest), max(other.low, largest) if other.high is None else other.high
        sizes = _quarters(low, high, choices.step)
        enough = all(choices.serves(own.choice, nbytes, choices.choose(nbytes)) for nbytes in sizes)
        if enough and _behind(choices, own.choice, low, high) is None:
            return [ByteRange(before.low, after.high, own.reference, own.choice)]
    return [before, after]


def _behind(choices: Choices[Choice], choice: Choice, low: int, high: int) -> int | None:
    """The first size of `choices.turns` that the choice does not serve; None if the choice serves all these sizes."""
    for nbytes in choices.turns(choice, low, high):
        if not choices.serves(choice, nbytes, choices.choose(nbytes)):
            return nbytes
    return None


def _lows(choices: Choices[Choice], sizes: Sequence[int], progress: Progress) -> list[int]:
    """The first size of each range: a range extends as far as one choice serves all its sizes."""
    best = []
    for i, nbytes in enumerate(sizes):
        best.append(choices.choose(nbytes))
        progress((i + 1) / len(sizes))

    kinds = [choices.kind(choice) for choice in best]
    lows, first, last = [0], 0, 1
    while last < len(sizes):
        alike = kinds[last - 1] == kinds[last]
        if alike and _common(choices, sizes[first : last + 1], best[first : last + 1]) is not None:
            last += 1
        elif not alike:
            lows.append(_change(choices, sizes[last - 1], sizes[last], kinds[last - 1]))
            first, last = last, last + 1
        else:
            first = max(last - 1, first + 1)
            lows.append(sizes[first])
            last = first + 1
    return lows


def _common(choices: Choices[Choice], sizes: Sequence[int], best: Sequence[Choice]) -> int | None:
    """The index of a choice that serves all the sizes, or None.

    The middle choice is tried first, then the choice for the largest size. The choice for the largest size is more
    robust if the delay is barely long enough for the other ranks' work before the arrival.
    """
    for index in (len(sizes) // 2, len(sizes) - 1, 0):
        if all(choices.serves(best[index], nbytes, each) for nbytes, each in zip(sizes, best, strict=True)):
            return index
    return None


def _change(choices: Choices[Choice], low: int, high: int, kind: object) -> int:
    """The smallest size above `low`, up to `high`, for which the choice is not of kind `kind`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if choices.kind(choices.choose(middle)) == kind else (low, middle)
    return high
