"""The errors in the times of schedules that ran in turns."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Student's t for 95 %, by number of turns. A timed schedule must gain at least t times the standard deviation of a
# turn, or t times the standard error of the median.
STUDENT: Final = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.37, 9: 2.31, 10: 2.26}
CHANCE: Final = 0.05
MEDIAN: Final = 1.2533  # standard error of a median divided by the standard error of a mean

Floats = NDArray[np.float64]


def turn_ratios(own: Sequence[float], other: Sequence[float]) -> Floats:
    """Logarithms of the ratios of two schedules' times, one for each turn in which both schedules ran."""
    turns = min(len(own), len(other))
    found: Floats = np.log(np.array(own[:turns]) / np.array(other[:turns]))
    return found


def error_of(turns: Floats, of_median: bool) -> float:
    """The 95 % error bound of one turn's value or, if `of_median`, of the turns' median.

    With five turns or more, the error bound of the median holds for any distribution of times. It is the distance from
    the median to the i-th longest of n turns, an upper limit for the median of all possible turns. The limit is wrong
    only if fewer than i of the n turns are above that median, and each turn is above it with probability 1/2. All other
    error bounds are half-widths of 95 % intervals by Student's t.
    """
    count = len(turns)
    if count < 2:
        return math.inf
    below = list(itertools.accumulate(math.comb(count, i) / 2**count for i in range(count + 1)))
    longer = bisect.bisect_right(below, CHANCE)  # i of the docstring: the limit is the i-th longest turn
    if of_median and longer:
        return float(np.sort(turns)[-longer] - np.median(turns))
    share = MEDIAN / math.sqrt(count) if of_median else 1.0
    return STUDENT.get(count, 2.2) * share * float(turns.std(ddof=1))
