"""Times of an allreduce on one rail, by size: measured tables, read between and beyond their samples."""

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

BEYOND: Final = 2.0  # times the last size of a table, up to which its slope there is taken for measured


@dataclass(frozen=True)
class RailOption:
    """A way to use a rail: its connections at once, and its CPU cores (None: their curve was not measured).

    The latency table is read as `Curve` does. Noise only adds: no sample counts for more than a larger one. With fewer
    cores than the fastest number, which the table is taken to have been measured with, all but the fitted latency takes
    longer, as the curve of rates over cores says.
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
        """The table as it counts."""
        return [Sample(bytes=size, seconds=time) for size, time in zip(self.curve.sizes, self.curve.times, strict=True)]

    def seconds(self, nbytes: float) -> float:
        """Seconds of an allreduce of `nbytes` on this rail alone."""
        return float(self.curve(nbytes))

    def together(self, nbytes: float) -> float:
        """The same while other rails run."""
        return self.rail.slowdown * self.seconds(nbytes)

    def together_bytes(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The most bytes that it carries in `seconds` while other rails run."""
        return self.curve.bytes(seconds / self.rail.slowdown)

    def measured(self, nbytes: float) -> bool:
        """Whether the table covers the size, or goes on to it for `BEYOND` times its last one at most."""
        return self.curve.sizes[0] <= nbytes <= BEYOND * self.curve.sizes[-1]

    def best_rate(self, nbytes: float) -> float:
        """The most bytes per second of any call of at most `nbytes`."""
        smaller = self.curve.sizes[: bisect.bisect_left(self.curve.sizes, nbytes)]
        sizes = [*smaller, nbytes]
        return max(size / self.seconds(size) for size in sizes)


def options(profile: Profile, rail: Rail) -> list[RailOption]:
    """The ways to use a rail within the profile's cores; the ones that ask for less come first.

    Raises:
      ProfileError: the rail's table holds a time of 0, or no measured number of cores is within `cpu_cores`.
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
