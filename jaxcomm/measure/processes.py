"""Measures the processes of a job: what a round and a byte cost between each two ranks, one transfer at a time and all
at once, where the ranks are, what is lost between hosts, and who arrives when.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import math
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm import errors
from jaxcomm.errors import ProfileError
from jaxcomm.log import say_once
from jaxcomm.measure import incast, lost_packets, placement, psum_loop
from jaxcomm.measure.placement import ExchangeRound, Exchanges, Floats, Pair
from jaxcomm.profile.files import validate
from jaxcomm.profile.racks_and_rails import MOST_LOST
from jaxcomm.profile.schema import FORMAT, VERSION, Collective, Profile, Provenance

SIZES: Final = tuple(2**power for power in range(10, 25, 2))
SECONDS: Final = 20.0  # for the transfers

_FEW_SIZES: Final = (1 << 10, 1 << 18, 1 << 20)  # the second takes longer than what others have queued in a switch
_FEW_SECONDS: Final = 1.0
_ALL_PAIRS: Final = 16  # ranks of which all pairs are measured alone
_ALONE: Final = 120  # pairs of more ranks
_SHUFFLES: Final = 3  # orders of up to so many ranks in which all meet at once; more meet in one
_MATCHINGS: Final = 63  # most of one order
_TURN_S: Final = 0.01  # that pairs exchange for, at each size
_MOST_ROUNDS: Final = 256  # of exchanges in one call
_PSUM_BYTES: Final = 2**20
_ALIGNED: Final = 64  # sizes are multiples of it, so that halves of a buffer are alike

_CALLS: Final = 2**20  # numbers of calls that each measurement has for itself

Progress = Callable[[float], object]


class Measured(NamedTuple):
    """The profile, and the times from which its links were found."""

    profile: Profile
    transfers: Exchanges


def measure_processes(
    sizes: Sequence[int] = SIZES,
    steps: int = 50,
    *,
    seconds: float = SECONDS,
    inject: Mapping[int, float] | None = None,
    progress: Progress = lambda share: None,
) -> Measured:
    """Profiles the CPU devices of all processes of a job. All call it, and all get the same profile but for arrivals.

    Two ranks exchange as many bytes in both directions, again and again, and the core times that from the last
    arrival: no clocks are compared. First all ranks do so in pairs at once, each with every other one, in several
    orders; then each pair alone. Of more than 16 ranks 120 pairs are measured alone, drawn with a fixed seed, and of
    more than 64 each rank meets 63 others: enough to find the racks of hosts, whose names all processes publish. Sizes
    are left out, from the largest, as far as the time does not suffice. Several hosts then each send the next one
    packets, for five seconds, and the profile has the share that gets lost on the worst way. Then `steps` psums of
    1 MiB are watched.

    Args:
      sizes: bytes in each direction, at least two of them; rounded up to whole cache lines.
      steps: rows of `arrivals`, at least 1.
      seconds: for the transfers, roughly.
      inject: seconds by rank by which to make ranks late on purpose, in the psums only.
      progress: called with the finished share, from 0 to 1.

    Raises:
      ProfileError: this process is not one of several that are connected by `jax.distributed`, or an argument that
        cannot be.
      JaxcommError: a process is gone, or has not come so far before the deadline.
    """
    inject = dict(inject or {})
    sizes = sorted({-(-size // _ALIGNED) * _ALIGNED for size in sizes})
    import jax

    devices = jax.devices("cpu")
    _check(len(devices), sizes, steps, seconds, inject)
    if jax.process_count() < 2:
        raise ProfileError(
            "this process is not one of several, so there are no links between processes to measure.\n"
            "  Cure: jaxcomm launch -n 4 -- jaxcomm profile, or jax.distributed.initialize() in each process."
        )
    job = _Job([device.process_index for device in devices], [device.id for device in devices])
    found = _measure_transfers(job, sizes, seconds, lambda share: progress(0.8 * share))
    found = found._replace(incast=incast.measure(found, job.sums))
    packet_loss = _count_lost_packets(job, found)
    arrivals, collective = _measure_psums(devices, steps, inject)
    progress(1.0)
    late = "".join(f", rank {rank} made {by * 1e3:g} ms late" for rank, by in sorted(inject.items()))
    hosts = len({*found.hosts})
    provenance = Provenance(
        source=f"{len(devices)} ranks in {len(job.processes)} processes on {hosts} host{'s' * (hosts != 1)}{late}",
        tool="jaxcomm profile",
        versions={name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": len(devices),
        **placement.describe(found),
        **packet_loss,
        "arrivals": arrivals,
        "warmup_dropped": psum_loop.WARMUP_STEPS,
        "collective": collective.model_dump(),
        "provenance": provenance.model_dump(),
    }
    return Measured(validate(document, provenance.source), found)


def measure_links(
    measurement: int | None = None, *, devices: Sequence[Any] = (), with_incast: bool = False
) -> Exchanges:
    """The times of transfers between CPU devices, in about a second, by `measure_processes` without psums.

    Args:
      measurement: its number, alike in all processes and no other one's. Without it all processes count alike, which
        they may not after an error.
      devices: of several processes, all of which call it; (): all of the job.
      with_incast: whether also what it costs hosts to exchange with several others, in another second.

    Raises:
      JaxcommError: as there.
    """
    import jax

    devices = devices or jax.devices("cpu")
    job = _Job([device.process_index for device in devices], [device.id for device in devices], measurement)
    found = _measure_transfers(job, _FEW_SIZES, _FEW_SECONDS, lambda share: None)
    return found._replace(incast=incast.measure(found, job.sums)) if with_incast else found


class _Job:
    """The ranks that are measured, and the calls that this process makes with others of theirs."""

    def __init__(self, processes: Sequence[int], devices: Sequence[int], measurement: int | None = None) -> None:
        """Takes each rank's process and device, and what `measure_links` does; connects the processes."""
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
        """Seconds of one exchange of each pair, all at once; and how long that took the first process, for all."""
        start = time.monotonic()
        numbers = [next(self._numbers) for _ in pairs]  # also for those of others
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
        if values is None:  # memory that is touched first while it is timed would count
            values = self._buffers[mine, nbytes] = np.ones((len(mine), 2 * nbytes), np.uint8)
        messages = ffi.register_messages(tuple(each.encode() for each in exchanges(rounds)))
        name = f"exchange of ranks {pair[0]} and {pair[1]}"
        return calls.run(name, number, messages, ranks, values) / rounds

    def _gather(self, table: Floats) -> Floats:
        """The rows of all processes; each brings its own and zeros. They come together there."""
        from jaxcomm.distributed import calls

        first = dict(reversed(self.ranks))
        members = [(process, first[process]) for process in self.processes]
        gathered = table[None].copy()
        calls.run("agreeing", next(self._numbers), f"all_reduce/flat/{len(members)}", members, gathered)
        rows: Floats = gathered[0]
        return rows

    def _host_names(self) -> list[str]:
        """By rank; hosts that call themselves alike are numbered."""
        from jaxcomm.distributed import records, settings, store

        chosen = settings.from_environment().host
        store.publish(
            f"profile/{self.process}", json.dumps([chosen or records.host_identity(), chosen or socket.gethostname()])
        )
        missing = "has not said on which host it runs"
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


def _measure_transfers(job: _Job, sizes: Sequence[int], seconds: float, progress: Progress) -> Exchanges:
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


def _count_lost_packets(job: _Job, found: Exchanges) -> dict[str, Any]:
    """Their field of the profile: the share on the worst way."""
    hosts: dict[int, str] = {}  # by one process of each
    for (process, _), name in zip(job.ranks, job.hosts, strict=True):
        if name not in hosts.values():
            hosts[process] = name
    if len(hosts) < 2:
        return {}
    rates: dict[frozenset[str], float] = {}  # of two hosts, the best that was seen: what is lost slows TCP down, too
    for each in (*found.alone, *found.loaded):
        for (one, other), seconds in zip(each.pairs, each.seconds, strict=True):
            if len(ends := frozenset((found.hosts[one], found.hosts[other]))) == 2:
                rates[ends] = max(rates.get(ends, 0.0), float((np.array(found.sizes) / seconds).max()))
    lost = lost_packets.measure(hosts, min(rates.values()), job.number)
    worst = max(lost, key=lambda each: each.rate, default=None)
    if worst is None:
        return {}
    if worst.rate > MOST_LOST:
        say_once(
            f"{worst.rate:.0%} of UDP packets from {worst.sender} to {worst.receiver} do not come, so what links lose "
            "is not known; a firewall may stop them."
        )
        return {}
    return {"packet_loss": {"rate": worst.rate}}


def _measure_psums(devices: Sequence[Any], steps: int, inject: Mapping[int, float]) -> tuple[Any, Collective]:
    """The arrivals of each step, as this process measured them, and a psum's seconds."""
    import jax

    from jaxcomm.collectives import communicator

    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    with communicator.use_plan(None), errors.translated():
        found = psum_loop.run(psum_loop.loop(mesh, inject), psum_loop.zeros(mesh, _PSUM_BYTES), steps)
    arrivals = np.round(np.array(found["arrivals"]), 9).tolist()
    return arrivals, Collective(bytes=_PSUM_BYTES, seconds=float(np.median(found["after_arrival_s"])))


def _check(ranks: int, sizes: Sequence[int], steps: int, seconds: float, inject: Mapping[int, float]) -> None:
    wrong = [f"sizes has {len(sizes)} sizes after rounding; at least 2 are needed"] if len(sizes) < 2 else []
    wrong += [f"sizes has {size}; each must be above 0"] if (size := min(sizes, default=1)) < 1 else []
    wrong += [f"steps is {steps}; it must be from 1 to 256"] if not 1 <= steps <= 256 else []
    wrong += [f"seconds is {seconds}; it must be above 0"] if not 0 < seconds < math.inf else []
    for rank, by in inject.items():
        if not 0 <= rank < ranks:
            wrong.append(f"inject names rank {rank}; the ranks are 0 to {ranks - 1}")
        if not 0 <= by < math.inf:
            wrong.append(f"inject makes rank {rank} late by {by} s; that must be a finite time of 0 or more")
    if wrong:
        raise ProfileError(f"{wrong[0]}.\n  Cure: change it and measure again.")
