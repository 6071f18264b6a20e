"""The bytes through every rank's port if ranks read and write each other's memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.program.lowering import lower
from jaxcomm.schedules import Schedule


class Ports(NamedTuple):
    """Each rank's traffic, in buffer sizes: `sends[r]` leaves rank r's memory, `receives[r]` enters it."""

    sends: NDArray[np.float64]
    receives: NDArray[np.float64]


def ports(schedule: Schedule) -> Ports:
    """The traffic of a schedule's program from the late rank's arrival on. A rank's own memory needs no port."""
    sends, receives = np.zeros((2, schedule.ranks))
    before = len(lower(schedule.precondition)) if schedule.precondition else 0
    for step in lower(schedule)[before:]:
        reads = [rank for rank in step.reads if rank != step.rank]
        np.add.at(sends, reads, 1)
        receives[step.rank] += len(reads)
        writes = [rank for rank in step.writes if rank != step.rank]
        sends[step.rank] += len(writes)
        np.add.at(receives, writes, 1)
    return Ports(sends / schedule.num_chunks, receives / schedule.num_chunks)
