"""Direct: the bandwidth-optimal schedule with the fewest rounds, for ranks that exchange with all others at once."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_ranks, join, rows


def direct(ranks: int) -> Schedule:
    """AllReduce in two rounds: rank i sums chunk i of all ranks, then sends the sum to all ranks.

    It has the volume of a ring, in 2 rounds instead of `2(ranks - 1)`, but needs `ranks - 1` ports per rank.

    Args:
      ranks: number of ranks n, at least 2; the buffer is cut into n chunks.

    Raises:
      ValueError: fewer than two ranks.

    Example:
      >>> jaxcomm.schedules.direct(4).num_rounds
      2
    """
    check_ranks(ranks)
    return Schedule("direct", ranks, ranks, 2, 2 * (ranks - 1), ranks - 1, _table, (ranks,))


def _table(ranks: int) -> Table:
    other, owner = np.nonzero(~np.eye(ranks, dtype=bool))
    return join([rows(0, other, owner, owner, Op.REDUCE), rows(1, owner, other, owner, Op.COPY)])
