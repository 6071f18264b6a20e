"""The straggler-aware AllReduce. In each round the late rank sends one chunk, and the others spread earlier chunks."""

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

    The schedule takes `chunks - 1 + ceil(log2(ranks))` rounds after the late rank's arrival. No schedule can beat that
    if each rank has one port: one peer to send to, and one peer to receive from, in each round. All rounds are pairwise
    if the template is pairwise.

    Args:
      ranks: number of ranks n, at least 2.
      straggler: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1; each round moves one piece of s/k bytes per rank.
      template: the transfers of one round; by default `template(ranks)`. A single chunk needs no template.

    Returns:
      A schedule whose `precondition` is the others' ReduceScatter.

    Raises:
      ValueError: a rank out of range, no chunk, or a template for another number of ranks.
      PlanError: the template needs OR-Tools, which is not installed.

    Source: Devraj et al., "Accelerating AllReduce with a Persistent Straggler", section 3. The number of chunks, and
    the schedules for n that is not a power of two, are ours.

    Example:
      >>> schedule = jaxcomm.schedules.straggler(8, straggler=3, chunks=4)
      >>> schedule.num_rounds, schedule.late  # 4 − 1 + ⌈log2 8⌉ rounds
      (6, 3)
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

    Index i < N stands for the i-th of the N other ranks, and index N for the late rank. Chunk c goes from the late rank
    to index c mod N in round c. The template's steps for age a move chunk c in round c + a, if c + a is less than the
    number k of chunks. From round k on the template keeps rotating, and chunk numbers from k on stand for the last
    chunks.
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
    """The transfers of the late rank (index N).

    The late rank exchanges each chunk with the chunk's owner, or sends the chunk to this owner and gets the sum from
    another rank.
    """
    home = template.home
    owner = chunk % others
    if home.age == 0:
        return [rows(chunk, others, owner, chunk, Op.REDUCE), rows(chunk, owner, others, chunk, Op.REDUCE)]
    # No rank could return the sum of the last chunk in time. So the late rank gets this chunk's partial sum in round 0,
    # in which it receives nothing else.
    last, before = chunks - 1, chunk[:-1]
    return [
        rows(0, last % others, others, last, Op.REDUCE),
        rows(before, others, owner[:-1], before, Op.REDUCE),
        rows(last, others, last % others, last, Op.COPY),
        rows(before + home.age, (before + home.age + home.src) % others, others, before, Op.COPY),
    ]


def _tail(others: int, chunks: int, template: Template, steady: Table) -> Iterator[Table]:
    """The transfers of the rounds from `chunks` on, without copies of a chunk that the receiver already has."""
    rounds = chunks - 1 + others.bit_length()
    src, dst, age = np.array([TemplateStep(others, 0, 0), *template.among]).T
    # Row c of `has` is for chunk oldest + c. Chunks before `oldest` have reached all ranks.
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
