"""The straggler-aware AllReduce: the late rank sends one chunk per round; the others spread the earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules.broadcast import spread_table
from jaxcomm.schedules.find_template import template as find_template
from jaxcomm.schedules.reduce_scatter import all_but, reduce_scatter
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, join, rows
from jaxcomm.schedules.template import Template, TemplateStep


def straggler(ranks: int, straggler: int, chunks: int, template: Template | None = None) -> Schedule:
    """AllReduce in which one late rank joins after the others have reduce-scattered.

    Takes `chunks - 1 + ceil(log2(ranks))` rounds after the late rank's arrival, which no schedule can beat in which
    a rank has one port, that is one peer to send to and one to receive from in a round. Rounds are pairwise when the
    template is.

    Args:
      ranks: number of ranks n, at least 2.
      straggler: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1; each round moves one piece of s/k bytes per rank.
      template: the transfers of one round; by default that of `template(ranks)`. One chunk needs none.

    Returns:
      A schedule whose `precondition` is the others' ReduceScatter.

    Raises:
      ValueError: a rank out of range, no chunk, or a template for another number of ranks.
      PlanError: the template needs OR-Tools, which is not installed.

    Source: Devraj et al., "Accelerating AllReduce with a Persistent Straggler", section 3; the chunk count, and every n
    that is not a power of two, are ours.
    """
    check_ranks(ranks)
    check_rank("straggler", straggler, ranks)
    check_chunks(chunks)
    if template is not None and template.ranks != ranks:
        raise ValueError(f"the template is for {template.ranks} ranks, the schedule for {ranks}")
    template = None if chunks == 1 else template or find_template(ranks)
    rounds = chunks - 1 + (ranks - 1).bit_length()
    before = reduce_scatter(ranks, straggler, chunks, chunks)
    parameters = (ranks, straggler, chunks, template)
    return Schedule(
        "straggler", ranks, chunks, rounds, rounds, 1, straggler_table, parameters, before, straggler, template
    )


def straggler_table(ranks: int, late: int, chunks: int, template: Template | None, first: int = 0) -> Table:
    """The transfers of the chunks from `first` on.

    Index i < N is the i-th of the others, index N the late rank. Chunk c leaves the late rank for index c mod N in
    round c, and what a template says for age a happens to it in round c + a, as long as that is before round k. In the
    rounds from k on the template keeps turning, and the chunks that it would introduce stand for the last ones.
    """
    others = ranks - 1
    member = np.array([*all_but(late, ranks), late])
    if template is None:
        return spread_table(ranks, late, 1)
    chunk = np.arange(first, chunks)
    src, dst, age = np.array(template.among, int).reshape(-1, 3).T[:, :, None]
    round_ = chunk + age
    steady = rows(round_, (round_ + src) % others, (round_ + dst) % others, chunk, Op.COPY)
    steady = steady[steady[:, 0] < chunks]
    table = join([*_late_rank(others, chunks, template, chunk), steady, *_tail(others, chunks, template, steady)])
    table[:, 1:3] = member[table[:, 1:3]]
    return table


def _late_rank(others: int, chunks: int, template: Template, chunk: NDArray[np.int64]) -> list[Table]:
    """The late rank (index N) and the owners hand each other chunks, or only it to them and others return them."""
    home = template.home
    owner = chunk % others
    if home.age == 0:
        return [rows(chunk, others, owner, chunk, Op.REDUCE), rows(chunk, owner, others, chunk, Op.REDUCE)]
    # Nobody could return the last chunk in time, so the late rank gets its partial sum in the idle round 0.
    last, before = chunks - 1, chunk[:-1]
    return [
        rows(0, last % others, others, last, Op.REDUCE),
        rows(before, others, owner[:-1], before, Op.REDUCE),
        rows(last, others, last % others, last, Op.COPY),
        rows(before + home.age, (before + home.age + home.src) % others, others, before, Op.COPY),
    ]


def _tail(others: int, chunks: int, template: Template, steady: Table) -> Iterator[Table]:
    """The rounds from `chunks` on, without copies of a chunk that the receiver already has."""
    rounds = chunks - 1 + others.bit_length()
    src, dst, age = np.array([TemplateStep(others, 0, 0), *template.among]).T
    # Row c of these tables is chunk oldest + c; older chunks are not on their way any more.
    oldest = max(0, chunks - len(template.colours))
    has = np.zeros((chunks - oldest, others), bool)
    real = np.arange(oldest, chunks)
    has[real - oldest, real % others] = True
    recent = steady[steady[:, 3] >= oldest]
    has[recent[:, 3] - oldest, recent[:, 2]] = True
    colour = np.array(template.colours)
    for round_ in range(chunks, rounds):
        chunk = round_ - age
        beyond = chunk >= chunks
        chunk[beyond] = chunks - 1 - colour.max() + colour[rounds - 1 - chunk[beyond]]
        receiver = (round_ + dst) % others
        wanted = (chunk >= 0) & ~has[np.maximum(chunk - oldest, 0), receiver]
        sender = np.where(src == others, others, (round_ + src) % others)
        has[chunk[wanted] - oldest, receiver[wanted]] = True
        yield rows(round_, sender[wanted], receiver[wanted], chunk[wanted], Op.COPY)
