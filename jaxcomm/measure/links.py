"""Times transfers between the ranks of a job, one pair at a time and all at once."""

from __future__ import annotations

import itertools
import json
import math
import random
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.measure import incast, placement
from jaxcomm.measure.placement import ExchangeRound, Exchanges, Floats, Pair

_FEW_SIZES: Final = (1 << 10, 1 << 18, 1 << 20)  # the second takes longer than what others have queued in a switch
_FEW_SECONDS: Final = 1.0
_ALL_PAIRS: Final = 16  # ranks of which all pairs are measured alone
_ALONE: Final = 120  # pairs of more ranks
_SHUFFLES: Final = 3  # orders in which all ranks meet at once; one order for more than _ALL_PAIRS ranks
_MATCHINGS: Final = 63  # most of one order
_TURN_S: Final = 0.01  # that pairs exchange for, at each size
_MOST_ROUNDS: Final = 256  # of exchanges in one call
_CALLS: Final = 2**20  # call numbers of one measurement

Progress = Callable[[float], object]


def measure_links(
    measurement: int | None = None, *, devices: Sequence[Any] = (), with_incast: bool = False
) -> Exchanges:
    """Times transfers between CPU devices for about a second, as `measure_processes` does.

    Args:
      measurement: a number that all processes give to this measurement and to no other. Without it each process counts
        its measurements, and their counts may differ after an error.
      devices: of several processes, all of which call it; (): all of the job.
      with_incast: also measures incast, for another second.

    Raises:
      JaxcommError: as there.
    """
    import jax

    devices = devices or jax.devices("cpu")
    job = MeasuredJob([device.process_index for device in devices], [device.id for device in devices], measurement)
    found = measure_transfers(job, _FEW_SIZES, _FEW_SECONDS, lambda share: None)
    return found._replace(incast=incast.measure(found, job.sums)) if with_incast else found


class MeasuredJob:
    """The ranks that are measured, and this process's calls with the others."""

    def __init__(self, processes: Sequence[int], devices: Sequence[int], measurement: int | None = None) -> None:
        """Connects the processes.

        Args:
          processes: the process of each rank.
          devices: the device of each rank.
          measurement: as for `measure_links`.
        """
        from jaxcomm.distributed import calls, members

        self.number = next(calls.measurements()) if measurement is None else measurement
        self._numbers = itertools.count(_CALLS * self.number)  # of calls
        self.ranks = [*zip(processes, devices, strict=True)]
        self.process = members.connected().process
        self.processes = sorted({*processes})
        self._row = self.processes.index(self.process)  # of tables
        self.hosts = self._host_names()
        own = processes.count(self.process)
        self._threads = ThreadPoolExecutor(own) if own > 1 else None
        self._buffers: dict[tuple[tuple[int, ...], int], NDArray[np.uint8]] = {}

    def exchange(self, pairs: Sequence[Pair], nbytes: int, rounds: Sequence[int]) -> tuple[Floats, float]:
        """Seconds of one exchange of each pair, all at once, and the first process's seconds for all of them."""
        start = time.monotonic()
        numbers = [next(self._numbers) for _ in pairs]  # also for pairs of other processes
        mine = [index for index, pair in enumerate(pairs) if self._is_mine(pair)]
        run = self._threads.map if self._threads and len(mine) > 1 else map
        found = run(lambda i: self._exchange(pairs[i], rounds[i], numbers[i], nbytes), mine)
        table = np.zeros((len(self.processes), len(pairs) + 1))
        table[self._row, mine] = [*found]
        table[self._row, -1] = time.monotonic() - start
        gathered = self._gather(table)
        return gathered[:, :-1].max(axis=0), float(gathered[0, -1])

    def _is_mine(self, pair: Pair) -> bool:
        return any(self.ranks[rank][0] == self.process for rank in pair)

    def sums(self, ranks: Sequence[int], nbytes: int, schedules: Sequence[str]) -> Floats:
        """Seconds of a sum of some ranks, one of a process at most, by each of these schedules in turn."""
        from jaxcomm.distributed import calls

        members = [self.ranks[rank] for rank in ranks]
        numbers = [next(self._numbers) for _ in schedules]
        table = np.zeros((len(self.processes), len(schedules)))
        if self.process in [process for process, _ in members]:
            values = np.ones((1, nbytes), np.uint8)
            table[self._row] = [
                calls.run(f"a sum by {name}", number, f"all_reduce/{name}/{len(ranks)}", members, values)
                for name, number in zip(schedules, numbers, strict=True)
            ]
        longest: Floats = self._gather(table).max(axis=0)
        return longest

    def _exchange(self, pair: Pair, rounds: int, number: int, nbytes: int) -> float:
        from jaxcomm import ffi
        from jaxcomm.distributed import calls
        from jaxcomm.program.messages import exchanges

        ranks = [self.ranks[rank] for rank in pair]
        mine = tuple(rank for rank in pair if self.ranks[rank][0] == self.process)
        values = self._buffers.get((mine, nbytes))
        if values is None:  # the first touch of memory must not be timed
            values = self._buffers[mine, nbytes] = np.ones((len(mine), 2 * nbytes), np.uint8)
        messages = ffi.register_messages(tuple(each.encode() for each in exchanges(rounds)))
        name = f"exchange of ranks {pair[0]} and {pair[1]}"
        return calls.run(name, number, messages, ranks, values) / rounds

    def _gather(self, table: Floats) -> Floats:
        """The rows of all processes; each brings its own row and zeros. All must call it."""
        from jaxcomm.distributed import calls

        first = dict(reversed(self.ranks))
        members = [(process, first[process]) for process in self.processes]
        gathered = table[None].copy()
        calls.run("agreeing", next(self._numbers), f"all_reduce/flat/{len(members)}", members, gathered)
        rows: Floats = gathered[0]
        return rows

    def _host_names(self) -> list[str]:
        """The host of each rank; hosts of the same name are numbered."""
        from jaxcomm.distributed import records, settings, store

        chosen = settings.from_environment().host
        store.publish(
            f"profile/{self.process}", json.dumps([chosen or records.host_identity(), chosen or socket.gethostname()])
        )
        missing = "has not published its host"
        published = {
            each: json.loads(store.lookup(f"profile/{each}", f"process {each} {missing}", each))
            for each in self.processes
        }
        names: dict[str, str] = {}
        for identity, name in published.values():
            if identity not in names:
                alike = sum(other.partition(" #")[0] == name for other in names.values())
                names[identity] = f"{name} #{alike + 1}" if alike else name
        return [names[published[process][0]] for process, _ in self.ranks]


def measure_transfers(job: MeasuredJob, sizes: Sequence[int], seconds: float, progress: Progress) -> Exchanges:
    """Times exchanges of all ranks at once and of single pairs.

    Args:
      job: the ranks.
      sizes: bytes in each direction, ascending; the largest are left out where `seconds` do not suffice.
      seconds: for all exchanges, roughly.
      progress: called with the finished share, from 0 to 1.
    """
    ranks = len(job.ranks)
    together = placement.shuffled_matchings(ranks, _SHUFFLES if ranks <= _ALL_PAIRS else 1, _MATCHINGS)
    pairs = [*combinations(range(ranks), 2)]
    single = pairs if ranks <= _ALL_PAIRS else random.Random(0).sample(pairs, _ALONE)
    steps = len(together) + len(single)

    # Once through all pairs of one order, which also warms connections up: how long an exchange takes of each.
    quick: list[dict[Pair, float]] = []
    used, slowest = 0.0, 0.0
    for index, size in enumerate(sizes):
        growth = size / sizes[index - 1] if index else 0.0
        if index >= 2 and used + steps * max(slowest * growth, _TURN_S) > seconds:
            break
        quick.append({})
        slowest = 0.0
        for matching in placement.matchings(range(ranks))[:_MATCHINGS]:
            rounds = 4 if size <= 2**16 else 1
            times, took = job.exchange(matching, size, [rounds] * len(matching))
            quick[-1].update(zip(matching, times.tolist(), strict=True))
            slowest = max(slowest, float(times.max()))
            used += took
        progress(0.3 * (index + 1) / len(sizes))
    measured = tuple(sizes[: len(quick)])
    typical = [float(np.median([*known.values()])) for known in quick]
    turn = min(_TURN_S, max(1e-3, (seconds - used) / steps / len(measured)))
    done = itertools.count(1)

    def rounds_of(pair: Pair, index: int) -> int:
        needed = turn / max(quick[index].get(pair, typical[index]), 1e-9)
        return int(2 ** round(math.log2(min(max(needed, 1.0), _MOST_ROUNDS))))

    def measure(at_once: Sequence[Pair]) -> ExchangeRound:
        columns = [
            job.exchange(at_once, size, [rounds_of(pair, index) for pair in at_once])[0]
            for index, size in enumerate(measured)
        ]
        progress(0.3 + 0.7 * next(done) / steps)
        return ExchangeRound(tuple(at_once), np.stack(columns, axis=1).clip(min=1e-9))

    loaded = tuple(measure(matching) for matching in together)
    return Exchanges(measured, tuple(job.hosts), tuple(measure([pair]) for pair in single), loaded)
