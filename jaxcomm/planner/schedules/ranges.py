"""Which schedule for which range of sizes: where the best one changes, and the sizes that are known to occur."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from jaxcomm.plan.values import Entry, Nccl, Spec
from jaxcomm.planner.byte_ranges import SMALLEST, TOLERANCE, common_choice, sizes_between
from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting

STEPS: Final = 4  # sizes per octave that are looked at
FINEST: Final = 1.02  # ratio of the ends of a range that is not divided further

Progress = Callable[[float], object]


def entries(setting: Setting, known: Mapping[int, Spec], progress: Progress) -> tuple[Entry, ...]:
    """The entries of a plan, covering every size.

    Args:
      setting: what the plan is made for.
      known: the choice for sizes that are known to occur; each gets an entry of its own.
      progress: called with the finished share.
    """
    sizes = sizes_between(known, STEPS)
    cuts = sorted({*_lows(setting, sizes, progress), *known, *(nbytes + 1 for nbytes in known)})
    found: list[Entry] = []
    for low, following in zip(cuts, [*cuts[1:], None], strict=True):
        if low in known:
            found.append(entry(setting, low, low, low, known[low]))
        else:
            found += _refined(setting, low, None if following is None else following - 1, sizes[-1])
    return tuple(found)


def _refined(setting: Setting, low: int, high: int | None, largest: int) -> list[Entry]:
    """The entry for a range, or several where no choice would serve all of it."""
    start, end = max(low, SMALLEST), max(low, largest) if high is None else high
    quarters = [min(end, round(start * (end / start) ** (i / 4))) for i in range(5)]
    choices = [choose(setting, nbytes) for nbytes in quarters]
    best = _common(setting, quarters, choices)
    if best is None and end < FINEST * start:
        best = 2
    if best is not None:
        return [entry(setting, low, high, quarters[best], choices[best])]
    return [*_refined(setting, low, quarters[2], largest), *_refined(setting, quarters[2] + 1, high, largest)]


def _common(setting: Setting, sizes: Sequence[int], choices: Sequence[Spec]) -> int | None:
    """The index of a choice that takes little longer for all the sizes than the choice for each of them."""

    def serves(spec: Spec, nbytes: int, best: Spec) -> bool:
        return spec == best or setting.seconds(spec, nbytes) <= TOLERANCE * setting.seconds(best, nbytes)

    return common_choice(sizes, choices, serves)


def _lows(setting: Setting, sizes: list[int], progress: Progress) -> list[int]:
    """Where the ranges begin: each goes as far as one choice serves all of its sizes."""
    choices = []
    for i, nbytes in enumerate(sizes):
        choices.append(choose(setting, nbytes))
        progress((i + 1) / len(sizes))

    lows, first, last = [0], 0, 1
    while last < len(sizes):
        kinds = {_runs(choice) for choice in choices[first : last + 1]}
        if len(kinds) == 1 and _common(setting, sizes[first : last + 1], choices[first : last + 1]) is not None:
            last += 1
        elif _runs(choices[last - 1]) != _runs(choices[last]):
            lows.append(_change(setting, sizes[last - 1], sizes[last], _runs(choices[last - 1])))
            first, last = last, last + 1
        else:
            first = max(last - 1, first + 1)
            lows.append(sizes[first])
            last = first + 1
    return lows


def _runs(spec: Spec) -> tuple[str, ...]:
    """The kind of schedule, or NCCL and the kind that runs where it does not."""
    return (spec.kind, spec.otherwise) if isinstance(spec, Nccl) else (spec.kind,)


def _change(setting: Setting, low: int, high: int, kind: tuple[str, ...]) -> int:
    """The least size between two from which on another kind of schedule is the choice."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _runs(choose(setting, middle)) == kind else (low, middle)
    return high
