"""Schedules to export, and their texts in both formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxcomm import schedules
from jaxcomm.plan.exporters.msccl_xml import msccl_xml
from jaxcomm.plan.exporters.mscclpp import mscclpp
from jaxcomm.schedules import Op, Schedule
from tests.schedules.schedule_cases import CASES


def solved(ranks: int) -> Schedule:
    """A schedule listed by transfers: every owner exchanges with the late rank, then sends its sum to the others."""
    late, others = ranks - 1, range(ranks - 1)
    before = [(hop - 1, (c - hop) % late, c, c, Op.REDUCE) for c in others for hop in range(1, late)]
    after = [move for c in others for move in ((c, late, c, c, Op.REDUCE), (c, c, late, c, Op.REDUCE))]
    after += [(c + hop, c, (c + hop) % late, c, Op.COPY) for c in others for hop in range(1, late)]
    flat = (tuple(int(number) for move in moves for number in move) for moves in (before, after))
    return schedules.listed(ranks, late, ranks - 1, *flat)


ALL: dict[str, Callable[[int], Schedule]] = {**CASES, "transfers": solved}


def mscclpp_text(schedule: Schedule) -> str:
    return mscclpp(schedule, "test", 0, None).text


def one_block_per_chunk(schedule: Schedule) -> str:
    """The MSCCL++ plan for sizes whose chunks are too small to be shared by several thread blocks."""
    return mscclpp(schedule, "test", 0, small(schedule)).text


def small(schedule: Schedule) -> int:
    """The largest buffer whose chunks are too small to be shared by two thread blocks."""
    return 32 * 1024 * schedule.num_chunks - 1


def xml_text(schedule: Schedule) -> str:
    return msccl_xml(schedule, "test", 0, None).text


def one_instance(schedule: Schedule) -> str:
    return msccl_xml(schedule, "test", 0, small(schedule)).text


def star(ranks: int) -> Schedule:
    """Rank 0 adds up the chunk of all ranks, and sends the sum to all other ranks."""
    rows = [[0, rank, 0, 0, Op.REDUCE] for rank in range(1, ranks)] + [
        [1, 0, rank, 0, Op.COPY] for rank in range(1, ranks)
    ]
    return Schedule.from_table(rows, kind="star", ranks=ranks, num_chunks=1, ports=ranks)


def spokes(counts: Sequence[int]) -> Schedule:
    """Rank 0 sends `counts[i]` chunks to rank i + 1, one per round. This is no allreduce, but tests limits per link."""
    rows = [[chunk, 0, rank, chunk, Op.COPY] for rank, count in enumerate(counts, 1) for chunk in range(count)]
    ranks = len(counts) + 1
    return Schedule.from_table(rows, kind="spokes", ranks=ranks, num_chunks=max(counts), ports=ranks)
