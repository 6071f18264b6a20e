"""Hybrid: the straggler schedule for the chunks that punctual ranks had time to reduce, a ring for other chunks."""

from __future__ import annotations

import numpy as np

from jaxcomm.schedules.one_late_rank import straggler as straggler_schedule
from jaxcomm.schedules.one_late_rank import straggler_table
from jaxcomm.schedules.reduce_scatter import reduce_scatter
from jaxcomm.schedules.ring import ring_table
from jaxcomm.schedules.schedule import Schedule, Table, join
from jaxcomm.schedules.template import Template


def hybrid(ranks: int, straggler: int, chunks: int, covered: int, template: Template | None = None) -> Schedule:
    """AllReduce for a late rank that arrives before the others have reduce-scattered everything.

    The straggler schedule sums the first `covered` chunks, which the others have reduce-scattered. Then the remaining
    chunks go around a ring of all ranks. Each step of the ring moves a block of `(chunks - covered) / ranks` chunks.

    Args:
      ranks: number of ranks n, at least 2.
      straggler: the late rank, in [0, n).
      chunks: pieces of the buffer.
      covered: chunks that are reduce-scattered before the late rank's arrival, in [1, chunks]; the number of remaining
        chunks must be a multiple of `ranks`.
      template: the same argument as in `straggler`.

    Returns:
      A schedule whose `precondition` is the others' ReduceScatter of the covered chunks.

    Raises:
      ValueError: a rank out of range, or a number of covered chunks that does not fit.
      PlanError: the template needs OR-Tools, which is not installed.

    Example:
      >>> schedule = jaxcomm.schedules.hybrid(8, straggler=3, chunks=12, covered=4)
      >>> schedule.num_rounds, schedule.late
      (20, 3)
    """
    if not 1 <= covered <= chunks or (chunks - covered) % ranks:
        raise ValueError(f"covered is {covered} of {chunks} chunks; at least 1, and {ranks} must divide the rest")
    head = straggler_schedule(ranks, straggler, covered, template)
    width = (chunks - covered) // ranks
    lap = 2 * (ranks - 1) if width else 0
    rounds, volume = head.num_rounds + lap, head.volume + lap * width
    parameters = (ranks, straggler, chunks, covered, head.template)
    before = reduce_scatter(ranks, straggler, covered, chunks)
    return Schedule("hybrid", ranks, chunks, rounds, volume, 1, _table, parameters, before, straggler, head.template)


def _table(ranks: int, late: int, chunks: int, covered: int, template: Template | None) -> Table:
    head = straggler_table(ranks, late, covered, template)
    around = ring_table(range(ranks), (chunks - covered) // ranks)
    return join([head, around + np.array([head[-1, 0] + 1, 0, 0, covered, 0], np.int32)])
