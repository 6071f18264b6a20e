"""The times of an allreduce on one rail, by size, interpolated and extrapolated from measured tables."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.files import mistake
from jaxcomm.profile import Profile, Rail, Sample, fit
from jaxcomm.profile.fit import Curve, without_noise

BEYOND: Final = 2.0  # a table's last slope counts as measured up to this multiple of the table's last size


@dataclass(frozen=True)
class RailOption:
    """A rail used with a number of parallel connections and of CPU cores (None: rates by cores were not measured).

    `curve` interpolates the latency table for these connections. Noise only adds time, so a sample's time is capped at
    the least time of all larger samples. The table counts as measured with the number of cores that has the highest
    rate. For another number of cores, the part of each time beyond the fitted latency is multiplied by the highest rate
    and divided by the rate with this number.
    """

    rail: Rail
    channels: int
    cores: int | None
    curve: Curve

    @property
    def use(self) -> tuple[int, int | None]:
        """How the rail is used: connections and cores."""
        return self.channels, self.cores

    @property
    def samples(self) -> list[Sample]:
        """The latency table, cleaned of noise and scaled to the cores."""
        return [Sample(bytes=size, seconds=time) for size, time in zip(self.curve.sizes, self.curve.times, strict=True)]

    def seconds(self, nbytes: float) -> float:
        """Seconds of an allreduce of `nbytes` on this rail alone."""
        return float(self.curve(nbytes))

    def together(self, nbytes: float) -> float:
        """Seconds of an allreduce of `nbytes` while other rails run."""
        return self.rail.slowdown * self.seconds(nbytes)

    def together_bytes(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The maximum number of bytes that the rail carries in `seconds` while other rails run."""
        return self.curve.bytes(seconds / self.rail.slowdown)

    @property
    def reach(self) -> float:
        """The maximum number of bytes for which the table bounds the time: `BEYOND` times the table's last size.

        The bound also holds below the first size: fewer bytes take no longer.
        """
        return BEYOND * self.curve.sizes[-1]

    def best_rate(self, nbytes: float) -> float:
        """The highest rate, in bytes per second, of a call of at most `nbytes` bytes."""
        smaller = self.curve.sizes[: bisect.bisect_left(self.curve.sizes, nbytes)]
        sizes = [*smaller, nbytes]
        return max(size / self.seconds(size) for size in sizes)


def options(profile: Profile, rail: Rail) -> list[RailOption]:
    """The options for using a rail with at most the profile's CPU cores, the least demanding first.

    Raises:
      ProfileError: the rail's table holds a time of 0, or every measured number of cores exceeds `cpu_cores`.
    """
    where = f"{profile.provenance.source}: rail {rail.name!r}"
    cores: list[tuple[int | None, float]] = [(None, 1.0)]
    if rail.cores:
        within = [each for each in rail.cores if profile.cpu_cores is None or each.cores <= profile.cpu_cores]
        if not within:
            problem = f"was measured with {rail.cores[0].cores} cores or more; cpu_cores is {profile.cpu_cores}"
            raise ProfileError(mistake(where, problem, "measure it with fewer, or correct cpu_cores"))
        most = max(each.bytes_per_s for each in rail.cores)
        cores = [(each.cores, most / each.bytes_per_s) for each in within]
    tables = [(1, rail.latency), *((virtual.channels, virtual.latency) for virtual in rail.virtual)]
    return [
        _option(rail, channels, count, table, factor, where) for channels, table in tables for count, factor in cores
    ]


def _option(
    rail: Rail, channels: int, cores: int | None, table: Sequence[Sample], factor: float, where: str
) -> RailOption:
    latency = fit(table, "send_recv", 2, where).alpha_s
    raw = without_noise([sample.seconds for sample in table])
    fixed = np.minimum(raw, latency)
    times = fixed + factor * (raw - fixed)
    curve = Curve.of([sample.bytes for sample in table], times.tolist())
    return RailOption(rail, channels, cores, curve)
