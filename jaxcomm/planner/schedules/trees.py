"""CP-SAT over the trees by which every chunk of a straggler schedule spreads, and over the time of every transfer.

The late rank exchanges every chunk with its owner; a tree of copies then spreads the sum. A port carries one transfer
at a time, and a chunk enters a host once: what has crossed a slow link spreads inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple

from jaxcomm.cluster import Port, Topology
from jaxcomm.planner import cp_sat
from jaxcomm.planner.cp_sat import Log
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.reduce_scatter import all_but

GRID: Final = 8  # the solver sees the slow links' cost rounded down to a multiple of 1/8, so that its bound holds
PASSES: Final = ((1, 0.25), (0, 0.75))  # how much the solver linearises, which finds bounds; then not: solutions
WORK_PER_SECOND: Final = 0.12  # the solver's deterministic time, on the machine where it was measured


class Move(NamedTuple):
    """One transfer of the solution, or the exchange of a chunk, which goes both ways."""

    start: int
    src: int
    dst: int
    chunk: int
    exchange: bool


class Trees:
    """The CP-SAT model; times are integers, in ticks."""

    def __init__(self, topology: Topology, late: int, chunks: int, free_owners: bool) -> None:
        cp_model = cp_sat.load("for a topology")
        self._cp: Any = cp_model
        self._model: Any = cp_model.CpModel()
        self._topology, self._late = topology, late
        slow = Fraction(int(topology.slow * GRID), GRID)
        self._fast_ticks, self._slow_ticks = slow.denominator, slow.numerator
        self._ranks = range(len(topology.hosts))
        self._others = all_but(late, len(topology.hosts))
        horizon = chunks * len(self._ranks) * self._slow_ticks
        self._end = self._model.new_int_var(0, horizon, "end")
        self._there = {  # when rank v has chunk c, complete
            (v, c): self._model.new_int_var(1, horizon, f"there_{v}_{c}") for v in self._ranks for c in range(chunks)
        }
        self._taken: dict[tuple[int, int, int, bool], Any] = {}  # src, dst, chunk, exchange → whether it happens
        for chunk in range(chunks):
            owners = self._others if free_owners else [self._others[chunk % len(self._others)]]
            self._spread(chunk, owners)
        if free_owners:  # then chunks differ by nothing but when they are exchanged
            for chunk in range(chunks - 1):
                self._model.add(self._there[late, chunk] <= self._there[late, chunk + 1])
        self._share_ports()
        self._model.add_max_equality(self._end, list(self._there.values()))
        self._model.minimize(self._end)

    def _ticks(self, src: int, dst: int) -> int:
        return self._slow_ticks if self._topology.crosses(src, dst) else self._fast_ticks

    def _spread(self, chunk: int, owners: list[int]) -> None:
        """One exchange, one way in for everybody else, one way into every other host."""
        hosts, model = self._topology.hosts, self._model
        for dst in self._others:
            for src in self._ranks:
                enters_home = hosts[dst] == hosts[self._late] != hosts[src]
                if src != dst and not enters_home and owners != [dst]:
                    self._taken[src, dst, chunk, False] = model.new_bool_var(f"copy_{src}_{dst}_{chunk}")
            if dst in owners:
                self._taken[self._late, dst, chunk, True] = model.new_bool_var(f"exchange_{dst}_{chunk}")
        mine = [(key, taken) for key, taken in self._taken.items() if key[2] == chunk]
        model.add_exactly_one(taken for (*_, exchange), taken in mine if exchange)
        for rank in self._others:
            model.add_exactly_one(taken for (_, dst, *_), taken in mine if dst == rank)
        for host in {*hosts} - {hosts[self._late]}:
            model.add_exactly_one(taken for (src, dst, *_), taken in mine if hosts[dst] == host != hosts[src])
        for (src, dst, _, exchange), taken in mine:
            begin, end = self._there[src, chunk], self._there[dst, chunk]
            if exchange:
                model.add(begin == end).only_enforce_if(taken)
                model.add(end >= self._ticks(src, dst)).only_enforce_if(taken)
            else:
                model.add(end >= begin + self._ticks(src, dst)).only_enforce_if(taken)

    def _share_ports(self) -> None:
        """No overlap at any port, and after the last transfer there its chunk has yet to spread."""
        model = self._model
        users: dict[Port, list[tuple[Any, Any, int, int]]] = defaultdict(list)
        for (src, dst, chunk, exchange), taken in self._taken.items():
            ticks = self._ticks(src, dst)
            interval = model.new_optional_fixed_size_interval_var(self._there[dst, chunk] - ticks, ticks, taken, "")
            ports = [*self._topology.ports(src, dst), *(self._topology.ports(dst, src) if exchange else ())]
            for port in ports:
                users[port].append((interval, taken, ticks, self._least_rest(src, dst, exchange)))
        for transfers_ in users.values():
            intervals, literals, ticks_, rests = zip(*transfers_, strict=True)
            model.add_no_overlap(intervals)
            used = model.new_bool_var("")
            for literal in literals:
                model.add_implication(literal, used)
            load = self._cp.LinearExpr.weighted_sum(literals, ticks_)
            model.add(self._end >= load + min(rests) * used)

    def _least_rest(self, src: int, dst: int, exchange: bool) -> int:
        """Ticks that the chunk needs after this transfer, in hosts that it can enter only now."""
        sizes = self._sizes
        rest = {}
        if exchange:
            rest = {host: self._slow_ticks + _doublings(size) * self._fast_ticks for host, size in sizes.items()}
            rest[self._topology.hosts[src]] = _doublings(sizes[self._topology.hosts[src]]) * self._fast_ticks
        if self._topology.crosses(src, dst):
            rest[self._topology.hosts[dst]] = _doublings(sizes[self._topology.hosts[dst]]) * self._fast_ticks
        elif exchange:
            rest[self._topology.hosts[dst]] -= self._fast_ticks  # two ranks of this host have it
        return max(rest.values(), default=0)

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return {host: self._topology.hosts.count(host) for host in self._topology.hosts}

    def solve(self, rotational: Schedule, time_limit: float, seed: int, log: Log) -> tuple[str, list[Move], float]:
        """Status, moves (none if no solution was found) and bound."""
        hint = list(self._hint(rotational))
        status, bound, moves = "UNKNOWN", 0.0, []
        for level, share in PASSES:
            solver, result = self._run(hint, level, share * time_limit, seed, log)
            bound = max(bound, solver.best_objective_bound / self._fast_ticks)
            if result not in ("OPTIMAL", "FEASIBLE"):  # stopped before it had found anything
                continue
            status = result
            moves = [
                Move(solver.value(self._there[dst, chunk]) - self._ticks(src, dst), src, dst, chunk, exchange)
                for (src, dst, chunk, exchange), taken in self._taken.items()
                if solver.boolean_value(taken)
            ]
            if status == "OPTIMAL":
                break
            hint = [(variable, solver.value(variable)) for variable in (*self._taken.values(), *self._there.values())]
        return status, moves, bound

    def _run(self, hint: list[tuple[Any, int]], level: int, time_limit: float, seed: int, log: Log) -> tuple[Any, str]:
        """The solver after its search, and its status; one worker and a deterministic limit, for equal results."""
        self._model.clear_hints()
        for variable, value in hint:
            self._model.add_hint(variable, value)
        solver = cp_sat.solver(self._cp, WORK_PER_SECOND * time_limit, seed, log)
        solver.parameters.linearization_level = level
        return solver, solver.status_name(solver.solve(self._model))

    def _hint(self, rotational: Schedule) -> Iterator[tuple[Any, int]]:
        """The rotational schedule's transfers; on one host they are a solution, with these times the best one."""
        made = {}
        for round_, src, dst, chunk, op in rotational.table().tolist():
            made[src, dst, chunk, op == Op.REDUCE] = round_
        for key, taken in self._taken.items():
            yield taken, key in made
        if len(self._sizes) == 1:
            for (_, dst, chunk, _), round_ in made.items():
                yield self._there[dst, chunk], (round_ + 1) * self._fast_ticks


def _doublings(ranks: int) -> int:
    return (ranks - 1).bit_length()
