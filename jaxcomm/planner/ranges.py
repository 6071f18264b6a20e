"""Which schedule for which range of sizes: where the best one changes, and the sizes that are known to occur."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jaxcomm.plan.values import Entry, Spec
from jaxcomm.planner.assess import Setting, choose, entry

SMALLEST, LARGEST = 2**8, 2**34  # bytes; below and above, the choice of the last octave holds
TOLERANCE: Final = 1.005


def entries(setting: Setting, known: Mapping[int, Spec], progress: Callable[[str, float], None]) -> tuple[Entry, ...]:
    """The entries of a plan, covering every size.

    Args:
      setting: what the plan is made for.
      known: the choice for sizes that are known to occur; each gets an entry of its own.
      progress: called with a stage and the finished share of it.
    """
    lows = _changes(setting, max([LARGEST, *known]), progress)
    cuts = sorted({*lows, *known, *(nbytes + 1 for nbytes in known)})
    found = []
    for low, following in zip(cuts, [*cuts[1:], None], strict=True):
        high = None if following is None else following - 1
        end = max(LARGEST, 4 * low) if high is None else high
        middle = min(end, round((max(low, SMALLEST) * end) ** 0.5))
        spec = known[low] if low in known else choose(setting, middle)
        found.append(entry(setting, low, high, low if low in known else middle, spec))
    return tuple(found)


def _changes(setting: Setting, largest: int, progress: Callable[[str, float], None]) -> list[int]:
    """Where the choice changes: to another kind exactly there, to other chunk counts at a power of two nearby."""
    lows, centre, spec = [0], SMALLEST, choose(setting, SMALLEST)
    octaves = range(SMALLEST.bit_length() - 1, largest.bit_length() + 1)
    for octave in octaves:
        progress("sizes", (octave - octaves.start) / len(octaves))
        before, centre = centre, round(2 ** (octave + 0.5))
        best = choose(setting, centre)
        if best.kind != spec.kind:
            lows.append(_change(setting, before, centre, spec.kind))
        elif setting.seconds(spec, centre) > TOLERANCE * setting.seconds(best, centre):
            lows.append(2**octave)
        else:
            continue
        spec = best
    return lows


def _change(setting: Setting, low: int, high: int, kind: str) -> int:
    """The least size between two from which on another kind of schedule is the choice."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if choose(setting, middle).kind == kind else (low, middle)
    return high
