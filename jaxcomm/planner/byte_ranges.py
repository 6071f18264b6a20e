"""The ranges of sizes that one choice serves, for every decision by size: few ranges, and none whose choice is much
behind the best for a size in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, Generic, NamedTuple, TypeVar

SMALLEST, LARGEST = 2**8, 2**34  # bytes; the choice there holds below and above
TOLERANCE: Final = 1.02  # a range's choice takes at most as many times as long as the best, for any size in it

Choice = TypeVar("Choice")
Progress = Callable[[float], object]


class Choices(NamedTuple, Generic[Choice]):
    """The answers that one decision chooses between, by size.

    Attributes:
      choose: the best for one size.
      kind: choices share a range if they are of one kind; where it changes, a range ends, to the byte.
      serves: whether a choice takes little longer for a size than the best one there.
      turns: the sizes within a range at which the time of a choice, or the best time, begins to grow faster or slower;
        none where the sizes that the search begins with lie close enough.
      finest: ratio of the ends of a range that is not divided further.
      step: ranges are divided at its multiples; the best for one of them is so for all sizes since the one before.
    """

    choose: Callable[[int], Choice]
    kind: Callable[[Choice], object]
    serves: Callable[[Choice, int, Choice], bool]
    turns: Callable[[Choice, int, int], Iterable[int]] = lambda choice, low, high: ()
    finest: float = 1.02
    step: int = 1


class ByteRange(NamedTuple, Generic[Choice]):
    """One choice for the sizes from `low` to `high`, both included (None: no limit), made for `reference` bytes."""

    low: int
    high: int | None
    reference: int
    choice: Choice


def sizes_between(known: Iterable[int], per_octave: int) -> list[int]:
    """The sizes to choose for, `per_octave` of each octave, up to the largest that is known to occur."""
    largest = max([LARGEST, *known]).bit_length()
    steps = range(per_octave * (SMALLEST.bit_length() - 1), per_octave * largest + 1)
    return [round(2 ** (step / per_octave)) for step in steps]


def byte_ranges(
    choices: Choices[Choice], sizes: Sequence[int], cuts: Iterable[int] = (), progress: Progress = lambda share: None
) -> list[ByteRange[Choice]]:
    """Ranges that cover every size.

    Args:
      choices: the choices to choose between.
      sizes: ascending; where the search begins, and what every range is checked at.
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
    """One range, or several where no choice would serve all of it."""
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
    """Two neighbours of one kind, or one range if the choice of one serves both."""
    for own, other in ((before, after), (after, before)):
        low, high = max(other.low, smallest), max(other.low, largest) if other.high is None else other.high
        sizes = _quarters(low, high, choices.step)
        enough = all(choices.serves(own.choice, nbytes, choices.choose(nbytes)) for nbytes in sizes)
        if enough and _behind(choices, own.choice, low, high) is None:
            return [ByteRange(before.low, after.high, own.reference, own.choice)]
    return [before, after]


def _behind(choices: Choices[Choice], choice: Choice, low: int, high: int) -> int | None:
    """The first of the sizes of a range at which times turn where a choice does not serve."""
    for nbytes in choices.turns(choice, low, high):
        if not choices.serves(choice, nbytes, choices.choose(nbytes)):
            return nbytes
    return None


def _lows(choices: Choices[Choice], sizes: Sequence[int], progress: Progress) -> list[int]:
    """Where the ranges begin: each goes as far as one choice serves all of its sizes."""
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

    The middle one is tried first; where the delay only just covers the others' part, the last one is the more robust.
    """
    for index in (len(sizes) // 2, len(sizes) - 1, 0):
        if all(choices.serves(best[index], nbytes, each) for nbytes, each in zip(sizes, best, strict=True)):
            return index
    return None


def _change(choices: Choices[Choice], low: int, high: int, kind: object) -> int:
    """The least size between two from which on the choice is of another kind."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if choices.kind(choices.choose(middle)) == kind else (low, middle)
    return high
