"""Ring: a bandwidth-optimal schedule for ranks that have one port each and arrive together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, rows


def ring(ranks: int) -> Schedule:
    """AllReduce around a ring: every chunk goes around once to be summed, and once more to be copied.

    The ring takes `2(ranks - 1)` rounds of one chunk per rank. No schedule has a smaller volume if all ranks arrive
    together.

    Args:
      ranks: number of ranks n, at least 2; the buffer is cut into n chunks.

    Raises:
      ValueError: fewer than two ranks.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations".

    Example:
      >>> schedule = jaxcomm.schedules.ring(4)
      >>> schedule.num_rounds, schedule.volume, schedule.num_chunks
      (6, 6, 4)
    """
    check_ranks(ranks)
    num_rounds = 2 * (ranks - 1)
    return Schedule("ring", ranks, ranks, num_rounds, num_rounds, 1, _table, (ranks,))


def _table(ranks: int) -> Table:
    return ring_table(range(ranks))


def ring_table(members: Sequence[int], width: int = 1) -> Table:
    """Ring among `members`, in this order; piece p of the ring consists of chunks p·width … p·width+width−1."""
    n = len(members)
    member = np.array(members)
    step, i, j = np.ogrid[: n - 1, :n, :width]
    dst = member[(i + 1) % n]
    reduce = rows(step, member[i], dst, (i - step) % n * width + j, Op.REDUCE)
    copy = rows(n - 1 + step, member[i], dst, (i + 1 - step) % n * width + j, Op.COPY)
    return join([reduce, copy])
