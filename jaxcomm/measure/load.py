"""Counts the CPU time that other programs take during a measurement, because they make measured times longer."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from jaxcomm.measure.clocks import gathered

_STAT: Final = Path("/proc/stat")


class OtherPrograms:
    """Counts the CPU time that other programs take after the construction of this object.

    Each process of a job constructs one object, and all processes call `share` together.
    """

    def __init__(self) -> None:
        self._machine, self._busy, self._all = _ticks()
        self._own = _own_s()

    def share(self) -> float:
        """The share of CPU time that other programs took, on the machine where they took most.

        Only user time counts: kernel time, such as for this job's packets, cannot be attributed to programs.
        Processes are on one machine if they see the same boot time, even if namespaces split the machine into hosts.
        """
        _, busy, total = _ticks()
        rows = gathered(self._machine, busy - self._busy, total - self._all, _own_s() - self._own)
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        found = [0.0]
        for machine in {*rows[:, 0].tolist()}:
            busy_s, all_s = tick_s * rows[rows[:, 0] == machine, 1:3].max(axis=0)
            own_s = rows[rows[:, 0] == machine, 3].sum()
            found.append(float(np.clip((busy_s - own_s) / all_s, 0, 1)) if all_s else 0.0)
        return round(max(found), 3)


def _own_s() -> float:
    """User CPU seconds of this process and its ended children."""
    spent = os.times()
    return spent.user + spent.children_user


def _ticks() -> tuple[float, float, float]:
    """A number for the machine's boot time (exact in float32), the CPUs' ticks in user programs, and all CPU ticks."""
    rows = {name: words for name, *words in map(str.split, _STAT.read_text().splitlines())}
    ticks = [int(word) for word in rows["cpu"][:8]]
    return float(zlib.crc32(rows["btime"][0].encode()) & 0xFFFFFF), ticks[0] + ticks[1], sum(ticks)
