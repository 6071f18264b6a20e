"""Measured times by size, read between and beyond their samples."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Curve(NamedTuple):
    """Seconds by bytes: interpolated between samples, those of the first sample below it, and beyond the last growing
    by `slope` seconds per byte."""

    sizes: tuple[int, ...]
    times: tuple[float, ...]
    slope: float

    @classmethod
    def of(cls, sizes: Sequence[int], times: Sequence[float]) -> Self:
        """The curve through samples whose sizes ascend and whose times do not fall.

        Beyond the last it grows as over the last octave, or in proportion to the size where that does not grow.
        """
        octave = max(0, bisect.bisect_right(sizes, sizes[-1] / 2) - 1)
        grown = times[-1] - times[octave]
        slope = grown / (sizes[-1] - sizes[octave]) if grown > 0 else times[-1] / sizes[-1]
        return cls(tuple(sizes), tuple(map(float, times)), float(slope))

    def __call__(self, nbytes: ArrayLike) -> NDArray[np.float64]:
        """The seconds for one size, or for each of many."""
        above = self.slope * np.maximum(0.0, np.asarray(nbytes, np.float64) - self.sizes[-1])
        seconds: NDArray[np.float64] = np.interp(np.asarray(nbytes, np.float64), self.sizes, self.times) + above
        return seconds

    def bytes(self, seconds: ArrayLike) -> NDArray[np.float64]:
        """The largest size for each of so many seconds; 0 where the first sample takes longer."""
        ends = np.asarray(seconds, np.float64)
        above = np.maximum(0.0, ends - self.times[-1]) / self.slope
        nbytes: NDArray[np.float64] = np.interp(ends, self.times, self.sizes, left=0.0) + above
        return nbytes


def without_noise(times: Sequence[float]) -> NDArray[np.float64]:
    """Times by ascending size in which none is above that of a larger size: noise only adds."""
    least: NDArray[np.float64] = np.minimum.accumulate(np.asarray(times, np.float64)[::-1])[::-1]
    return least
