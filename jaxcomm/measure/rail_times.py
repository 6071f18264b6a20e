"""Measures the times of sums of all ranks over each rail of a job alone, and over all its rails together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxcomm.ffi.shares import UNITS, SharesFrom, in_units
from jaxcomm.log import say_once
from jaxcomm.measure.clocks import agreed
from jaxcomm.measure.links import MeasuredJob, Progress
from jaxcomm.measure.placement import Floats
from jaxcomm.profile.fit import Curve, without_noise
from jaxcomm.profile.racks_and_rails import Rail, Sample

if TYPE_CHECKING:
    from jaxcomm.distributed.connect.membership import Membership

SIZES: Final = tuple(2**power for power in range(12, 27, 2))
SHARE: Final = 0.15  # share of a profile's time that sums over rails may use, if there are several rails
_FEWEST, _MOST = 2, 20  # minimum and maximum number of timed calls; an untimed call first warms the connections up
_PART = 16  # a size may use a sixteenth of the time left, but always gets _FEWEST calls


def measure(job: MeasuredJob, seconds: float, progress: Progress = lambda share: None) -> list[Rail]:
    """Returns a job's rails with their times; empty if it has only one rail, or if a rail does not reach all processes.

    To time a rail alone, every buffer is sent whole over this rail. The fastest of several calls counts, because noise
    only adds time. Then sums over all rails are timed, with shares in proportion to the rails' speeds. `slowdown` is
    the time of a sum over all rails, divided by the greatest time that a rail alone takes for the bytes that it carried
    in this sum. The job's own shares are restored afterwards, even after an error.

    Args:
      job: the measured ranks; all of their processes call this.
      seconds: time for all sums, roughly. If it does not suffice, the largest sizes are left out.
      progress: called with the finished share, from 0 to 1.

    Raises:
      JaxcommError: a process ended, or missed the deadline.
    """
    from jaxcomm.distributed.connect import members

    own = members.connected()
    if len(own.rails) < 2 or not _lead_everywhere(job, own):
        return []
    begun = time.monotonic()
    sizes: list[int] = []
    times: list[list[float]] = []  # for each size: seconds over each rail alone, then over all rails
    carried: list[list[float]] = []  # for each size: each rail's share of the bytes in the sums over all rails
    processor: list[float] = []
    with _own_shares_afterwards(own):
        for size in SIZES:
            left = agreed(seconds - (time.monotonic() - begun))
            growth = size / sizes[-1] if sizes else 1.0
            round_s = growth * sum(times[-1]) if times else 0.0
            if sizes and (1 + _FEWEST) * round_s > left:
                break
            calls = int(np.clip(left / _PART / round_s, _FEWEST, _MOST)) if times else _MOST
            alone, processor = [], []
            for name in own.rails:
                _set_shares(own, {name: UNITS})
                found, busy = job.sums_of_all(size, 1 + calls)
                alone.append(float(found[1:].min()))
                processor.append(busy / (1 + calls) / size)
            _set_shares(own, dict(zip(own.rails, in_units([1 / each for each in alone]), strict=True)))
            before = _carried(job, own)
            together, _ = job.sums_of_all(size, 1 + calls)
            parts = _carried(job, own) - before
            sizes.append(size)
            times.append([*alone, float(together[1:].min())])
            carried.append((parts / max(1.0, parts.sum())).tolist())
            progress(len(sizes) / len(SIZES))
    *tables, together_s = [[*column] for column in zip(*times, strict=True)]
    slowdown = _slowdown(sizes, tables, together_s, carried)
    return [
        Rail(
            name=name,
            transport=kind,
            latency=[Sample(bytes=size, seconds=each) for size, each in zip(sizes, table, strict=True)],
            slowdown=slowdown,
            processor_s_per_byte=busy,
        )
        for name, kind, table, busy in zip(own.rails, own.kinds, tables, processor, strict=True)
    ]


def _slowdown(
    sizes: Sequence[int],
    tables: Sequence[Sequence[float]],
    together_s: Sequence[float],
    carried: Sequence[Sequence[float]],
) -> float:
    """The time of a sum over all rails, divided by the greatest time that a rail alone takes for the bytes it carried.

    The lower ratio of the two largest sizes counts, because noise only adds time. `carried` has each rail's measured
    share of the bytes, because a few segments cannot be divided exactly by the planned shares.
    """
    curves = [Curve.of(sizes, without_noise(table).tolist()) for table in tables]
    ratios = [
        seconds / max(float(curve(size * part)) for curve, part in zip(curves, parts, strict=True))
        for size, seconds, parts in zip(sizes, together_s, carried, strict=True)
    ]
    return max(1.0, min(ratios[-2:]))


def _carried(job: MeasuredJob, own: Membership) -> Floats:
    """The bytes that each rail has carried so far, summed over all processes."""
    from jaxcomm import ffi

    rows = ffi.rails()
    table = np.zeros((len(job.processes), len(own.rails)))
    table[job.row] = [sum(each["bytes"] for each in rows if each["rail"] == name) for name in own.rails]
    found: Floats = job.gather(table).sum(axis=0)
    return found


def _set_shares(own: Membership, shares: Mapping[str, int]) -> None:
    for process in own.shares:
        own.set_shares(process, [SharesFrom(0, shares)])


@contextlib.contextmanager
def _own_shares_afterwards(own: Membership) -> Iterator[None]:
    try:
        yield
    finally:
        for process, shares in own.shares.items():
            own.set_shares(process, shares)


def _lead_everywhere(job: MeasuredJob, own: Membership) -> bool:
    """Whether every rail is open from each process to all others that are reached over the network."""
    from jaxcomm import ffi

    there = {(each["process"], each["rail"]) for each in ffi.rails() if each["is_open"]}
    table = np.zeros((len(job.processes), len(own.rails)))
    table[job.row] = [any((process, name) not in there for process in own.shares) for name in own.rails]
    missing = [name for name, lacks in zip(own.rails, job.gather(table).sum(axis=0), strict=True) if lacks]
    if missing:
        say_once(f"rails are not timed, as not all processes are reached over {', '.join(missing)}.")
    return not missing
