"""A straggler schedule for hosts whose links differ, solved for the network instead of turned by a template."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from jaxcomm.cluster import Port, Topology
from jaxcomm.errors import JaxcommError
from jaxcomm.plan.values import Solved
from jaxcomm.planner.cp_sat import Log
from jaxcomm.planner.schedules.trees import Move, Trees
from jaxcomm.schedules import Op, Schedule, straggler, transfers

Times = defaultdict[tuple[int, int], float]

LARGEST: Final = 4096  # possible transfers that a model may have, ranks² · chunks: some ten seconds


@dataclass(frozen=True)
class Solution:
    """The best schedule found; times are in units of one chunk over a fast link, after the late rank's arrival.

    Attributes:
      schedule: of kind "transfers", or the rotational one when nothing better was found.
      status: what the solver says: "OPTIMAL" (no schedule in which a chunk enters a host once is faster, as far as the
        links' cost is a multiple of 1/8), "FEASIBLE", or "UNKNOWN" when it found none in time.
      makespan: the time of the schedule.
      bound: no schedule in which a chunk enters a host once takes less, with the same owners unless they are free.
      rotational: the time of the rotational schedule on the same network.
    """

    schedule: Schedule
    status: str
    makespan: float
    bound: float
    rotational: float

    @property
    def gap(self) -> float:
        """How far the bound is below the makespan, as a share of the makespan."""
        return max(0.0, 1 - self.bound / self.makespan)


def solve(
    topology: Topology,
    late: int,
    chunks: int,
    *,
    free_owners: bool = False,
    time_limit: float = 10.0,
    seed: int = 0,
    log: Log = None,
) -> Solution:
    """The straggler schedule that ends soonest on this network, as far as the solver gets; equal input, equal output.

    It is never slower than the rotational schedule of as many chunks on the same network.

    Args:
      topology: the network.
      late: the late rank.
      chunks: pieces k of the buffer.
      free_owners: let the solver choose who reduces which chunk, instead of dealing them out evenly. That shortens what
        follows the late rank's arrival, and may lengthen what comes before.
      time_limit: seconds, roughly: the limit is on the solver's work, which is the same on every machine.
      seed: of the solver.
      log: receives the lines of the solver's log.

    Raises:
      ValueError: a rank out of range, or no chunk.
      JaxcommError: more ranks and chunks than the model is for, or OR-Tools is not installed.
    """
    ranks = len(topology.hosts)
    check_size(ranks, chunks)
    rotational = straggler(ranks, late, chunks)
    status, moves, bound = Trees(topology, late, chunks, free_owners).solve(rotational, time_limit, seed, log)
    usual = makespan(rotational, topology)
    if moves:
        found = _in_rounds(topology, late, chunks, moves)
        took = makespan(found, topology)
        if took < usual:
            return Solution(found, status, took, bound, usual)
    return Solution(rotational, status, usual, min(bound, usual), usual)  # it may enter a host twice: below the bound


def solved(topology: Topology, late: int, time_limit: float, seed: int, log: Log) -> tuple[Solved, ...]:
    """The solved schedules of ranks − 1 chunks for a plan: with owners dealt out evenly, and with free ones.

    Those that are no better than the rotational schedule, or than the one before, are left out.
    """
    found: list[Solved] = []
    for free_owners in (False, True):
        best = solve(
            topology,
            late,
            len(topology.hosts) - 1,
            free_owners=free_owners,
            time_limit=time_limit / 2,
            seed=seed,
            log=log,
        )
        if best.schedule.kind == "transfers" and all(best.makespan < other.makespan for other in found):
            _, _, owners, moves = best.schedule.parameters
            found.append(
                Solved(
                    late=late,
                    owners=owners,
                    moves=moves,
                    free_owners=free_owners,
                    status=best.status,
                    makespan=best.makespan,
                    bound=best.bound,
                    rotational=best.rotational,
                )
            )
    return tuple(found)


def check_size(ranks: int, chunks: int) -> None:
    """Raises JaxcommError if the model for so many ranks and chunks would be too large."""
    if ranks * ranks * chunks > LARGEST:
        raise JaxcommError(
            f"a topology of {ranks} ranks and {chunks} chunks has {ranks * ranks * chunks} possible transfers; the "
            f"solver takes {LARGEST}.\n  Cure: ask for fewer chunks, or for fewer ranks."
        )


def makespan(schedule: Schedule, topology: Topology) -> float:
    """The time that the solver minimises, of any schedule: in chunks over a fast link, without latency.

    A transfer starts when its chunk has arrived at the sender, nobody needs what it overwrites, and both its ports
    are done with what comes before it in the schedule; no rank waits for the end of a round. Both sides of an exchange
    start together. A NIC that ranks share keeps the schedule's order here; in a run (`simulate.clock`), by which plans
    choose, it serves whoever comes first.
    """
    free: defaultdict[Port, float] = defaultdict(float)
    written: Times = defaultdict(float)  # (rank, chunk) → when its last value is there
    read: Times = defaultdict(float)  # (rank, chunk) → when its last reader has it
    end = 0.0
    for _, together in itertools.groupby(schedule.table().tolist(), key=itemgetter(0)):
        ends: list[tuple[int, int, int, float]] = []
        transfers = {(src, dst, chunk): op for _, src, dst, chunk, op in together}
        for (src, dst, chunk), op in transfers.items():
            exchange = op == Op.REDUCE == transfers.get((dst, src, chunk))
            if exchange and src > dst:
                continue
            links = [(src, dst), (dst, src)][: 1 + exchange]
            ports = [port for link in links for port in topology.ports(*link)]
            values = (written[src, chunk], written[dst, chunk], read[dst, chunk], exchange * read[src, chunk])
            done = max(*values, *(free[port] for port in ports)) + topology.cost(src, dst)
            free.update(dict.fromkeys(ports, done))
            ends += [(*link, chunk, done) for link in links]
            end = max(end, done)
        for src, dst, chunk, done in ends:  # only now: the transfers of one round take no notice of each other's values
            written[dst, chunk] = max(written[dst, chunk], done)
            read[src, chunk] = max(read[src, chunk], done)
    return end


def _in_rounds(topology: Topology, late: int, chunks: int, moves: list[Move]) -> Schedule:
    """The moves in the fewest rounds that keep their order at every port, and receive before they send."""
    last: dict[Port, int] = defaultdict(lambda: -1)
    arrival: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    owners, table = [0] * chunks, []
    for move in sorted(moves):
        _, src, dst, chunk, exchange = move
        ports = [*topology.ports(src, dst), *(topology.ports(dst, src) if exchange else ())]
        round_ = 1 + max(arrival[src, chunk], *(last[port] for port in ports))
        last.update(dict.fromkeys(ports, round_))
        arrival[dst, chunk] = round_
        if exchange:
            owners[chunk], arrival[src, chunk] = dst, round_
        table.append((round_, src, dst, chunk))
    return transfers(len(topology.hosts), late, tuple(owners), tuple(number for row in sorted(table) for number in row))
