"""The schedules for the tests, and an execution on numbers that uses none of the package's executors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.program.verifier import verify_schedule
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.halves import Half

Numbers = NDArray[np.int64]


def ranks_of(fast: Iterable[int], slow: Iterable[int]) -> list[Any]:
    """Numbers of ranks as a test's parameters; only `make test-slow` runs those in `slow`."""
    return [*fast, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in slow)]


# Schedules for any number of ranks. The late rank is the first, the last or another; chunk counts are small and large.
CASES: dict[str, Callable[[int], Schedule]] = {
    "ring": schedules.ring,
    "halving_doubling": schedules.halving_doubling,
    "direct": schedules.direct,
    "broadcast from rank 0": lambda n: schedules.broadcast(n, 0),
    "broadcast from the middle": lambda n: schedules.broadcast(n, n // 2),
    "straggler, 1 chunk": lambda n: schedules.straggler(n, n - 1, 1),
    "straggler, 2 chunks": lambda n: schedules.straggler(n, 0, 2),
    "straggler, 3 chunks": lambda n: schedules.straggler(n, n // 2, 3),
    "straggler, 5 chunks": lambda n: schedules.straggler(n, n - 1, 5),
    "straggler, n - 1 chunks": lambda n: schedules.straggler(n, n // 3, n - 1),
    "straggler, 2n + 1 chunks": lambda n: schedules.straggler(n, n - 1, 2 * n + 1),
    "direct join, 1 chunk": lambda n: schedules.direct_join(n, n // 2, 1),
    "direct join, n - 1 chunks": lambda n: schedules.direct_join(n, 0, n - 1),
    "direct join, 3n chunks": lambda n: schedules.direct_join(n, n - 1, 3 * n),
    "late join, 1 chunk": lambda n: schedules.late_join(n, n - 1, 1),
    "late join, 2n + 1 chunks": lambda n: schedules.late_join(n, n // 2, 2 * n + 1),
    "hybrid, 1 of n + 1 chunks covered": lambda n: schedules.hybrid(n, n // 2, n + 1, 1),
    "hybrid, n of 3n chunks covered": lambda n: schedules.hybrid(n, 0, 3 * n, n),
    "hybrid, all covered": lambda n: schedules.hybrid(n, n - 1, n, n),
    "stragglers, one late": lambda n: schedules.stragglers(n, [n // 2], n + 1),
    "stragglers, two late": lambda n: schedules.stragglers(n, range(min(2, n - 1)), 2 * n),
    "stragglers, up to half late": lambda n: schedules.stragglers(n, range(n - min(n // 2, 12), n), n - 1),
    "stragglers, up to all but one late": lambda n: schedules.stragglers(n, range(1, min(n, 33)), 2),
    "chain of one": lambda n: schedules.chain(n, [0], 3),
    "chain of two": lambda n: schedules.chain(n, [n // 2, 0][-min(2, n - 1) :], 2 * n + 1),
    "chain of five": lambda n: schedules.chain(n, range(1, n)[::-1][:5], n - 1),
}


def on_hosts(ranks: int, per_host: int) -> tuple[int, ...]:
    """The host of every rank: hosts have `per_host` ranks each, and the last host has the rest."""
    return tuple(rank // per_host for rank in range(ranks))


CASES |= {
    f"halving_doubling, {name}": lambda n, name=name: schedules.halving_doubling(
        n, schedules.orders_by_host(on_hosts(n, 3))[name]
    )
    for name in schedules.orders_by_host((0, 0))
}
HostLinks = schedules.HostLinks

CASES |= {
    "hierarchical": lambda n: schedules.hierarchical(HostLinks.of(on_hosts(n, 4), "rank", 4.0), min(n, 32) + 1),
    "hierarchical, one NIC per host": lambda n: schedules.hierarchical(HostLinks.of(on_hosts(n, 3), "host", 2.0), 5),
    "hierarchical, one host": lambda n: schedules.hierarchical(HostLinks.of((0,) * n, "rank", 1.0), 3),
    "hierarchical, a rank per host": lambda n: schedules.hierarchical(HostLinks.of(range(n), "rank", 9.0), 3),
    "hierarchical, racks": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 2), "rank", 2.0, racks=on_hosts(len({*on_hosts(n, 2)}), 2)), 7
    ),
    "hierarchical, one late": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 4), "rank", 2.0), 9, [n // 2], 9, 9
    ),
    "hierarchical, one of like hosts late": lambda n: schedules.hierarchical(
        HostLinks.of([rank % max(1, n // 4) for rank in range(n)], "rank", 2.0), 13, [n - 1], 13, 13
    ),
    "hierarchical, one late, NIC per host": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 3), "host", 4.0), 8, [0], 8, 5
    ),
    "hierarchical, late by a little": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 4), "rank", 4.0), 9, [n - 1], 3, 6
    ),
    "hierarchical, two late": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 4), "rank", 4.0), 9, range(min(2, n - 1)), 9, 9
    ),
    "hierarchical, late on several hosts": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 2), "host", 2.0), 6, range(0, n - 1, 3), 6, 4
    ),
    "hierarchical, a host late": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 2), "rank", 2.0), 6, range(min(2, n - 1)), 6, 6
    ),
    "hierarchical, late in racks": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 2), "rank", 2.0, racks=on_hosts(len({*on_hosts(n, 2)}), 2)), 7, [n // 3], 7, 7
    ),
}

CASES |= {
    "hierarchical halves": lambda n: schedules.hierarchical_halves(HostLinks.of(on_hosts(n, 4), "rank", 4.0)),
    "hierarchical halves, in racks": lambda n: schedules.hierarchical_halves(
        HostLinks.of(on_hosts(n, 2), "host", 2.0, on_hosts(-(-n // 2), 2))
    ),
}


def rates(count: int, seed: int = 0) -> list[float]:
    """A random slowness for each of `count` links; no link, some or all links may be slow."""
    dice = random.Random(1000 * seed + count)
    return [dice.choice([1.0, 1.0, 1.25, 2.0, 4.0, 10.0]) for _ in range(count)]


def of_hosts(hosts: Sequence[int], seed: int = 0) -> list[float]:
    """A random slowness for each rank, equal for the ranks of a host."""
    each = rates(max(hosts) + 1, seed)
    return [each[host] for host in hosts]


CASES |= {
    "unlike, one slow": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, nics=[2.0] + [1.0] * (n - 1)), min(2 * n, 40)
    ),
    "unlike, all slow but one": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, nics=[4.0] * (n - 1) + [1.0]), min(3 * n, 40)
    ),
    "unlike, any rates": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, nics=rates(n)), min(n, 32) + 3
    ),
    "unlike, NICs of ranks on hosts": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 4), "rank", 2.0, nics=rates(n, 1)), 11
    ),
    "unlike, NICs of hosts": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 3), "host", 2.0, nics=of_hosts(on_hosts(n, 3))), 9
    ),
    "unlike, in racks": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, racks=on_hosts(n, 3), nics=rates(n), uplinks=rates(-(-n // 3), 2)), 9
    ),
    "unlike, hosts in racks": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 2), "rank", 2.0, racks=on_hosts(-(-n // 2), 2), uplinks=rates(-(-n // 4), 3)), 7
    ),
    "unlike, one late": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, nics=rates(n, 4)), 9, [n // 2], 9, 9
    ),
    "unlike, the slow one late by a little": lambda n: schedules.hierarchical(
        HostLinks.of(range(n), "rank", 1.0, nics=[2.0] + [1.0] * (n - 1)), 9, [0], 9, 4
    ),
    "unlike, late on hosts": lambda n: schedules.hierarchical(
        HostLinks.of(on_hosts(n, 4), "rank", 2.0, nics=rates(n, 5)), 9, [n - 1], 9, 7
    ),
    "unlike, two late in racks": lambda n: schedules.hierarchical(
        HostLinks.of(
            on_hosts(n, 2),
            "host",
            2.0,
            racks=on_hosts(-(-n // 2), 2),
            nics=of_hosts(on_hosts(n, 2), 6),
            uplinks=rates(-(-n // 4), 6),
        ),
        7,
        range(min(2, n - 1)),
        7,
        7,
    ),
}

# Reduce-scatters, and all-gathers, which are the same schedules reversed.
HALVES: dict[str, Callable[[Half, int], Schedule]] = {
    "direct": lambda half, n: schedules.half(half, schedules.direct(n)),
    "ring": lambda half, n: schedules.half(half, schedules.ring(n)),
    "halving_doubling": lambda half, n: schedules.half(half, schedules.halving_doubling(1 << n.bit_length() - 1)),
    "halving_doubling, dealt out": lambda half, n: schedules.half(
        half,
        schedules.halving_doubling(p := 1 << n.bit_length() - 1, schedules.orders_by_host(on_hosts(p, 3))["dealt_out"]),
    ),
    "hierarchical": lambda half, n: schedules.hierarchical_half(half, HostLinks.of(on_hosts(n, 4), "rank", 4.0)),
    "hierarchical, one NIC per host": lambda half, n: schedules.hierarchical_half(
        half, HostLinks.of(on_hosts(n, 3), "host", 2.0)
    ),
    "hierarchical, racks": lambda half, n: schedules.hierarchical_half(
        half, HostLinks.of(on_hosts(n, 2), "rank", 2.0, on_hosts(len({*on_hosts(n, 2)}), 2))
    ),
    "hierarchical, unlike NICs": lambda half, n: schedules.hierarchical_half(
        half, HostLinks.of(on_hosts(n, 4), "rank", 2.0, nics=rates(n))
    ),
}


def by_hand(schedule: Schedule, table: object = None) -> Schedule:
    """A schedule of these transfers (by default the schedule's own), without a constructor or a template."""
    return Schedule.from_table(
        schedule.table() if table is None else table,
        kind=schedule.kind,
        ranks=schedule.ranks,
        num_chunks=schedule.num_chunks,
        ports=schedule.ports,
        precondition=schedule.precondition,
        late=() if schedule.late is None else (*schedule.other_late_ranks, schedule.late),
        collective=schedule.collective,
    )


def random_numbers(schedule: Schedule, seed: int = 0) -> Numbers:
    """A random 64-bit number per rank and chunk. Sums are mod 2^64, so a wrong sum hardly ever equals the right one."""
    return _random((schedule.ranks, schedule.num_chunks), seed)


@lru_cache
def _random(shape: tuple[int, int], seed: int) -> Numbers:
    whole = np.iinfo(np.int64)
    numbers = np.random.default_rng(seed).integers(whole.min, whole.max, shape, dtype=np.int64)
    numbers.setflags(write=False)
    return numbers


def execute(schedule: Schedule, buffers: Numbers) -> Numbers:
    """The ranks' buffers at the end. An incomplete sum that was sent on in a precondition becomes garbage afterwards.

    Buffers are [ranks, chunks], or [ranks, chunks, n] for n executions at once.
    """
    held = buffers.reshape(schedule.ranks, schedule.num_chunks, -1).copy()
    initial = held.copy()
    added = np.zeros((schedule.ranks, schedule.num_chunks, 1), bool)  # whether another rank has added the value
    for before, after in pairwise(schedule.phases):
        rows = before.table()
        _run(held, rows.tolist())
        others = [rank for rank in range(schedule.ranks) if rank not in after.late_ranks]
        reduces = rows[rows[:, 4] == schedules.Op.REDUCE]
        added[reduces[:, 1], reduces[:, 3]] = True
        lost = added[others] & (held[others] != initial[others].sum(axis=0))
        held[others] = np.where(lost, random_numbers(schedule, seed=99)[others, :, None], held[others])
    _run(held, schedule.table().tolist())
    return held.reshape(buffers.shape)


def proves(schedule: Schedule) -> bool:
    try:
        verify_schedule(schedule)
    except PlanError:
        return False
    return True


def adds_up(schedule: Schedule) -> bool:
    """Whether an execution on two random numbers per rank and chunk gives the sum."""
    buffers = np.stack([random_numbers(schedule, seed) for seed in (1, 2)], axis=-1)
    return bool((execute(schedule, buffers) == buffers.sum(axis=0)).all())


def _run(held: Numbers, transfers: list[list[int]]) -> None:
    for _, together in groupby(sorted(transfers, key=itemgetter(0)), key=itemgetter(0)):
        old = held.copy()
        for _, src, dst, chunk, op in together:
            if op == schedules.Op.REDUCE:
                held[dst, chunk] += old[src, chunk]
            else:
                held[dst, chunk] = old[src, chunk]
