"""The share of the machine's CPU time that others used: processes that are not ours, and the hypervisor."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KTHREADD = 2
USER, NICE, SYSTEM, STEAL = 1, 2, 3, 8  # words of the first line of /proc/stat


class Used(NamedTuple):
    """CPU seconds used up to the time `at`."""

    at: float
    all: float
    own: float
    kernel: float


def used(proc: Path = Path("/proc")) -> Used:
    """CPU seconds that all processes, this process with its ended descendants, and the kernel's threads have used.

    Interrupts are left out, as most of them serve a testbed's links, which are ours.
    """
    words = (proc / "stat").read_text().split("\n", 1)[0].split()
    busy = TICK_S * sum(int(words[i]) for i in (USER, NICE, SYSTEM, STEAL))
    own = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        spent = resource.getrusage(who)
        own += spent.ru_utime + spent.ru_stime
    return Used(time.monotonic(), busy, own, _kernel(proc))


def others(before: Used, after: Used, processors: int | None = None) -> float:
    """The share of all processors that others used between two readings. Our processes must have ended."""
    spent = (after.all - before.all) - (after.own - before.own) - (after.kernel - before.kernel)
    whole = (after.at - before.at) * (processors or os.cpu_count() or 1)
    return max(0.0, spent / whole) if whole > 0 else 0.0


def _kernel(proc: Path) -> float:
    ticks = 0
    for each in proc.glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(fields[1]) == KTHREADD:
            ticks += int(fields[11]) + int(fields[12])
    return TICK_S * ticks
