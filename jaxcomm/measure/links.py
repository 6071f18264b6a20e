"""Measures the times of transfers between the ranks of a job, one pair at a time and all pairs at once."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.environment import host_name
from jaxcomm.measure import incast, placement
from jaxcomm.measure.placement import Floats, Pair, PairRound, PairTimes

# The second size must be large enough to show the time per byte, because the third size may be left out. An exchange of
# the second size therefore takes longer than the queueing delay that other flows cause in a switch.
_FEW_SIZES: Final = (1 << 10, 1 << 18, 1 << 20)
_FEW_SECONDS: Final = 1.0
_ALL_PAIRS: Final = 16  # up to this number of ranks, all pairs are measured alone
_ALONE: Final = 120  # number of pairs measured alone if there are more than _ALL_PAIRS ranks
_SHUFFLES: Final = 3  # number of rank orders from which matchings are made; 1 if there are more than _ALL_PAIRS ranks
_MATCHINGS: Final = 63  # maximum number of matchings (rounds of disjoint pairs) for each order of the ranks
_TURN_S: Final = 0.01  # seconds for a pair's exchanges at each size; less if the time is short
_MOST_ROUNDS: Final = 256  # maximum number of a pair's exchanges in one call
# Minimum ratio of the largest size's time to the smallest size's time. Below this ratio, noise dominates the time per
# byte.
_LEAST_GROWTH: Final = 4.0
_CALLS: Final = 2**20  # number of call numbers reserved for each measurement

Progress = Callable[[float], object]


def measure_links(
    measurement: int | None = None, *, devices: Sequence[Any] = (), with_incast: bool = False
) -> PairTimes:
    """Measures transfers between CPU devices for about a second, as `measure_processes` does.

    Args:
      measurement: a number that all processes give to this measurement only. None: each process counts its own
        measurements, and after an error the processes' counts may differ.
      devices: CPU devices of several processes, which all call this function; (): all devices of the job.
      with_incast: whether to measure incast as well, for another second.

    Raises:
      JaxcommError: a process ended, or missed the deadline.
    """
    import jax

    devices = devices or jax.devices("cpu")
    job = MeasuredJob([device.process_index for device in devices], [device.id for device in devices], measurement)
    found = measure_transfers(job, _FEW_SIZES, _FEW_SECONDS, lambda share: None)
    return found._replace(incast=incast.measure(found, job.sums)) if with_incast else found


class MeasuredJob:
    """The measured ranks, and this process's calls with the other processes."""

    def __init__(self, processes: Sequence[int], devices: Sequence[int], measurement: int | None = None) -> None:
        """Connects the processes.

        Args:
          processes: the process of each rank.
          devices: the device of each rank.
          measurement: as for `measure_links`.
        """
        from jaxcomm.distributed import calls
        from jaxcomm.distributed.connect import members

        self.number = next(calls.measurements()) if measurement is None else measurement
        self._numbers = itertools.count(_CALLS * self.number)  # call numbers
        self.ranks = [*zip(processes, devices, strict=True)]
        self.process = members.connected().process
        self.processes = sorted({*processes})
        self.row = self.processes.index(self.process)  # this process's row in tables
        self.hosts = self._host_names()
        own = processes.count(self.process)
        self._threads = ThreadPoolExecutor(own) if own > 1 else None
        self._buffers: dict[tuple[tuple[int, ...], int], NDArray[np.uint8]] = {}

    def exchange(self, pairs: Sequence[Pair], nbytes: int, rounds: Sequence[int]) -> tuple[Floats, float]:
        """Lets all pairs exchange at once.

        Returns each pair's seconds per exchange, and the first process's seconds for the whole call.
        """
        start = time.monotonic()
        numbers = [next(self._numbers) for _ in pairs]  # other pairs get numbers too, so that all processes agree
        mine = [index for index, pair in enumerate(pairs) if self._is_mine(pair)]
        run = self._threads.map if self._threads and len(mine) > 1 else map
        found = run(lambda i: self._exchange(pairs[i], rounds[i], numbers[i], nbytes), mine)
        table = np.zeros((len(self.processes), len(pairs) + 1))
        table[self.row, mine] = [*found]
        table[self.row, -1] = time.monotonic() - start
        gathered = self.gather(table)
        return gathered[:, :-1].max(axis=0), float(gathered[0, -1])

    def _is_mine(self, pair: Pair) -> bool:
        return any(self.ranks[rank][0] == self.process for rank in pair)

    def sums(self, ranks: Sequence[int], nbytes: int, schedules: Sequence[str]) -> Floats:
        """Runs one sum by each schedule in turn, and returns each sum's seconds.

        `ranks` has at most one rank of each process.
        """
        from jaxcomm.distributed import calls

        members = [self.ranks[rank] for rank in ranks]
        numbers = [next(self._numbers) for _ in schedules]
        table = np.zeros((len(self.processes), len(schedules)))
        if self.process in [process for process, _ in members]:
            values = np.ones((1, nbytes), np.uint8)
            table[self.row] = [
                calls.run(f"a sum by {name}", number, f"all_reduce/{name}/{len(ranks)}", members, values)
                for name, number in zip(schedules, numbers, strict=True)
            ]
        longest: Floats = self.gather(table).max(axis=0)
        return longest

    def sums_of_all(self, nbytes: int, calls: int) -> tuple[Floats, float]:
        """Returns the seconds of each of `calls` sums of all ranks, and a rank's mean CPU seconds for all these sums.

        The sums run back to back, by the default schedule. The hosts' clocks are used, because the core's clock starts
        at the last arrival. A small buffer is sent in one round, so the last rank has all other ranks' bytes when it
        arrives. The core's time of the call would then lack the network's latency.
        """
        from jaxcomm.distributed import calls as core_calls
        from jaxcomm.schedules.default_schedules import default_schedule

        ranks = len(self.ranks)
        messages = f"all_reduce/{default_schedule(nbytes, [*map(self.hosts.index, self.hosts)])}/{ranks}"
        values = np.ones((sum(process == self.process for process, _ in self.ranks), nbytes), np.uint8)
        table = np.zeros((len(self.processes), calls + 1))
        before = time.process_time()
        for call in range(calls):
            start = time.perf_counter()
            core_calls.run("a sum of all ranks", next(self._numbers), messages, self.ranks, values)
            table[self.row, call] = time.perf_counter() - start
        table[self.row, -1] = time.process_time() - before
        gathered = self.gather(table)
        return gathered[:, :-1].mean(axis=0), float(gathered[:, -1].sum() / ranks)

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

    def gather(self, table: Floats) -> Floats:
        """Returns the table with all processes' rows. Every process calls this, with zeros in other processes' rows."""
        from jaxcomm.distributed import calls

        first = dict(reversed(self.ranks))
        members = [(process, first[process]) for process in self.processes]
        gathered = table[None].copy()
        calls.run("agreeing", next(self._numbers), f"all_reduce/flat/{len(members)}", members, gathered)
        rows: Floats = gathered[0]
        return rows

    def _host_names(self) -> list[str]:
        """The name of each rank's host. Different hosts of the same name are numbered."""
        from jaxcomm.distributed import store
        from jaxcomm.distributed.connect import records, settings

        chosen = settings.from_environment().host
        store.publish(f"profile/{self.process}", json.dumps([chosen or records.host_identity(), host_name()]))
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


def measure_transfers(job: MeasuredJob, sizes: Sequence[int], seconds: float, progress: Progress) -> PairTimes:
    """Measures the times of exchanges of all ranks at once, and of single pairs.

    Args:
      job: the ranks.
      sizes: bytes in each direction, ascending. The largest sizes are left out if `seconds` do not suffice and the
        other sizes show the time per byte.
      seconds: time for all exchanges, roughly.
      progress: called with the finished share, from 0 to 1.
    """
    ranks = len(job.ranks)
    together = placement.shuffled_matchings(ranks, _SHUFFLES if ranks <= _ALL_PAIRS else 1, _MATCHINGS)
    pairs = [*combinations(range(ranks), 2)]
    single = pairs if ranks <= _ALL_PAIRS else random.Random(0).sample(pairs, _ALONE)
    steps = len(together) + len(single)

    # A first pass estimates each pair's time, and warms the connections up.
    quick: list[dict[Pair, float]] = []
    typical: list[float] = []
    used, slowest = 0.0, 0.0
    for index, size in enumerate(sizes):
        growth = size / sizes[index - 1] if index else 0.0
        shows_bytes = index >= 2 and typical[-1] > _LEAST_GROWTH * typical[0]
        if shows_bytes and used + steps * max(slowest * growth, _TURN_S) > seconds:
            break
        quick.append({})
        slowest = 0.0
        for matching in placement.matchings(range(ranks))[:_MATCHINGS]:
            rounds = 4 if size <= 2**16 else 1
            times, took = job.exchange(matching, size, [rounds] * len(matching))
            quick[-1].update(zip(matching, times.tolist(), strict=True))
            slowest = max(slowest, float(times.max()))
            used += took
        typical.append(float(np.median([*quick[-1].values()])))
        progress(0.3 * (index + 1) / len(sizes))
    measured = tuple(sizes[: len(quick)])
    turn = min(_TURN_S, max(1e-3, (seconds - used) / steps / len(measured)))
    done = itertools.count(1)

    def rounds_of(pair: Pair, index: int) -> int:
        needed = turn / max(quick[index].get(pair, typical[index]), 1e-9)
        return int(2 ** round(math.log2(min(max(needed, 1.0), _MOST_ROUNDS))))

    def measure(at_once: Sequence[Pair]) -> PairRound:
        columns = [
            job.exchange(at_once, size, [rounds_of(pair, index) for pair in at_once])[0]
            for index, size in enumerate(measured)
        ]
        progress(0.3 + 0.7 * next(done) / steps)
        return PairRound(tuple(at_once), np.stack(columns, axis=1).clip(min=1e-9))

    loaded = tuple(measure(matching) for matching in together)
    return PairTimes(measured, tuple(job.hosts), tuple(measure([pair]) for pair in single), loaded)
