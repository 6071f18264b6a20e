"""A schedule: rounds of transfers, unrolled on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.schedules.template import Template

Table = NDArray[np.int32]
CollectiveKind = Literal["all_reduce", "reduce_scatter", "all_gather"]

ALIGNMENT: Final = 64  # bytes; the executor cuts buffers at multiples of this number


class Op(IntEnum):
    """The receiver's operation on the chunk that arrives."""

    REDUCE = 0
    COPY = 1


class Transfer(NamedTuple):
    """One chunk that is sent from `src` to `dst`."""

    round: int
    src: int
    dst: int
    chunk: int
    op: Op


@dataclass(frozen=True)
class Schedule:
    """Rounds of transfers after which every rank holds every chunk, reduced over all ranks.

    Initially every rank holds its own contribution to every chunk. A reduce-scatter leaves the sum of chunk c on rank
    c. An all-gather begins with chunk c on rank c, and gives chunk c to every rank. The transfers of one round happen
    at once and read the values from before the round. So an exchange is two `REDUCE` transfers of the same chunk.

    Two schedules are equal if they have the same fields. The transfers are `unroll(*parameters)`, so a schedule that
    equals a constructor's result has the same transfers; a schedule made from a table equals only itself.

    Attributes:
      kind: name of the algorithm, for readers and for plans: "ring", "straggler", …
      ranks: number of ranks n.
      num_chunks: number k of equal pieces that the buffer is cut into.
      num_rounds: number of rounds after the late rank's arrival.
      volume: the largest number of chunks that one rank sends or receives in a round, summed over all rounds.
      ports: number of distinct peers that a rank may send to in one round. It may receive from the same number.
      unroll: makes the table of transfers from `parameters`; must be pure.
      parameters: arguments of `unroll`. If a function of this package made the schedule, they are also the arguments of
        that function, in order.
      precondition: the schedule that the other ranks run before the late ranks arrive, or None. A precondition may have
        a precondition of its own, in which more ranks are late.
      late: the late rank, or the last of several late ranks; None if no rank is late.
      template: the rotational template of a straggler schedule, or None.
      other_late_ranks: the late ranks except `late`; they do not take part in the precondition either.
      collective: the collective that the transfers carry out; reduce-scatters and all-gathers have one chunk per rank.
    """

    kind: str
    ranks: int
    num_chunks: int
    num_rounds: int
    volume: int
    ports: int
    unroll: Callable[..., Table] = field(repr=False)
    parameters: tuple[Any, ...] = field(repr=False)
    precondition: Schedule | None = None
    late: int | None = None
    template: Template | None = field(default=None, repr=False)
    other_late_ranks: tuple[int, ...] = ()
    collective: CollectiveKind = "all_reduce"

    @classmethod
    def from_table(
        cls,
        table: ArrayLike,
        *,
        kind: str,
        ranks: int,
        num_chunks: int,
        ports: int = 1,
        precondition: Schedule | None = None,
        late: tuple[int, ...] = (),
        collective: CollectiveKind = "all_reduce",
    ) -> Schedule:
        """Returns a schedule with these transfers. Its rounds and its volume are counted from the table.

        Args:
          table: integers [m, 5] with the columns round, src, dst, chunk, op, in any order of rows.
          kind: name of the algorithm.
          ranks: number of ranks.
          num_chunks: number of chunks.
          ports: number of distinct peers that a rank may send to, and receive from, in one round.
          precondition: the schedule that the other ranks run before the late ranks arrive.
          late: the late ranks.
          collective: the collective that the transfers carry out.
        """
        rows = np.array(table, dtype=np.int32).reshape(-1, 5)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        num_rounds, volume = measure(*loads(rows))
        unroll = lambda: rows  # noqa: E731
        return cls(
            kind,
            ranks,
            num_chunks,
            num_rounds,
            volume,
            ports,
            unroll,
            (),
            precondition,
            late[-1] if late else None,
            other_late_ranks=late[:-1],
            collective=collective,
        )

    @property
    def late_ranks(self) -> frozenset[int]:
        """The late ranks, which do not take part in the precondition."""
        return frozenset() if self.late is None else frozenset((self.late, *self.other_late_ranks))

    @property
    def phases(self) -> tuple[Schedule, ...]:
        """The phases in their order: first the phases of the precondition, then the schedule itself."""
        return (*(self.precondition.phases if self.precondition else ()), self)

    def table(self) -> Table:
        """The transfers as int32 [m, 5], columns round, src, dst, chunk, op; sorted by round and read-only."""
        return self._unrolled

    def transfers(self) -> Iterator[Transfer]:
        """The transfers after the late rank's arrival, round by round."""
        for round_, src, dst, chunk, op in self.table().tolist():
            yield Transfer(round_, src, dst, chunk, Op(op))

    def seconds(self, nbytes: int, alpha: float, beta: float) -> float:
        """Predicted time after the late rank's arrival: `num_rounds·α + aligned_volume·β`.

        Args:
          nbytes: size of the buffer s.
          alpha: seconds per round.
          beta: seconds per byte.
        """
        volume = aligned_volume(nbytes, self.num_chunks, self.volume, self.num_rounds * self.ports)
        return self.num_rounds * alpha + float(volume) * beta

    @cached_property
    def _unrolled(self) -> Table:
        table = self.unroll(*self.parameters)
        table.setflags(write=False)
        return table


def aligned_volume(nbytes: int, chunks: ArrayLike, volume: ArrayLike, messages: ArrayLike) -> NDArray[np.float64]:
    """Returns the bytes of a volume that is given in chunks. The executor cuts the buffer at multiples of 64 bytes.

    The result is exact if each message is one chunk. Alignment adds bytes only once to a message of several chunks.
    All arguments except `nbytes` may be arrays.
    """
    total, messages = np.asarray(volume, np.float64), np.maximum(messages, 1)
    chunk, message = (
        np.minimum(nbytes, np.ceil(share / ALIGNMENT) * ALIGNMENT)
        for share in (nbytes / np.asarray(chunks), np.maximum(total, messages) * nbytes / (chunks * messages))
    )
    return np.asarray(np.minimum(total * chunk, messages * message))


class PortLoad(NamedTuple):
    """The load of the ports in one direction. Each entry is for one rank that sends (or receives) in one round."""

    round: NDArray[np.int32]
    rank: NDArray[np.int32]
    peers: NDArray[np.int32]  # number of distinct ranks at the other end
    chunks: NDArray[np.int32]


def loads(table: Table) -> tuple[PortLoad, PortLoad]:
    """The loads of the sending ports and of the receiving ports, each sorted by round."""
    ranks = int(table[:, 1:3].max()) + 1 if len(table) else 1

    def load(own: int, other: int) -> PortLoad:
        links = np.sort((table[:, 0].astype(np.int64) * ranks + table[:, own]) * ranks + table[:, other])
        ports = links // ranks
        starts = group_starts(ports)
        first_of_peer = np.zeros(len(links), np.int32)
        first_of_peer[group_starts(links)] = 1
        peers = np.add.reduceat(first_of_peer, starts, dtype=np.int32) if len(links) else first_of_peer
        chunks = np.diff(np.concatenate((starts, [len(links)]))).astype(np.int32)
        ports = ports[starts]
        return PortLoad((ports // ranks).astype(np.int32), (ports % ranks).astype(np.int32), peers, chunks)

    return load(1, 2), load(2, 1)


def measure(sends: PortLoad, receives: PortLoad) -> tuple[int, int]:
    """Returns the number of rounds that the loads span, and the volume of the loads in chunks (see `Schedule`)."""
    if not len(sends.round):
        return 0, 0
    busiest = [np.maximum.reduceat(load.chunks, group_starts(load.round)) for load in (sends, receives)]
    return int(sends.round[-1]) + 1, int(np.maximum(*busiest).sum())


def group_starts(numbers: NDArray[np.integer]) -> NDArray[np.int_]:
    """The index at which each run of equal numbers begins."""
    return (
        np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1]))) if len(numbers) else np.empty(0, np.int_)
    )


def rows(round_: ArrayLike, src: ArrayLike, dst: ArrayLike, chunk: ArrayLike, op: Op) -> Table:
    """Returns a table with these columns, which are broadcast against each other."""
    columns = [np.asarray(column) for column in (round_, src, dst, chunk, op)]
    table = np.empty((*np.broadcast_shapes(*(column.shape for column in columns)), 5), np.int32)
    for index, column in enumerate(columns):
        table[..., index] = column
    return table.reshape(-1, 5)


def join(parts: Iterable[Table]) -> Table:
    """One table of all parts, sorted by round."""
    table = np.concatenate([np.empty((0, 5), np.int32), *parts])
    return table[np.argsort(table[:, 0], kind="stable")]


def check_ranks(ranks: int) -> None:
    """Raises ValueError if there are too few ranks for a collective."""
    if ranks < 2:
        raise ValueError(f"ranks is {ranks}; a collective needs at least 2")


def check_chunks(chunks: int) -> None:
    """Raises ValueError unless there is at least one chunk."""
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}; the buffer needs at least 1")


def check_rank(name: str, rank: int, ranks: int) -> None:
    """Raises ValueError unless `rank` is one of the ranks."""
    if not 0 <= rank < ranks:
        raise ValueError(f"{name} is {rank}; with {ranks} ranks it must be in [0, {ranks - 1}]")
