"""The rotational template of a straggler schedule: four tables of small integers, whatever the number of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from jaxcomm.errors import PlanError

NOBODY = -1


class Turn(NamedTuple):
    """One row of a template: offset `src` sends the chunk of this age to offset `dst`."""

    src: int
    dst: int
    age: int


@dataclass(frozen=True)
class Template:
    """Who sends what to whom in one round, relative to the rank whose turn it is.

    Write N for the number of ranks that are not late. In round r the rank of offset o is the one with index
    (r + o) mod N among these N. It sends chunk r − send_age[o] to the rank of offset send_peer[o] and receives chunk
    r − receive_age[o] from the rank of offset receive_peer[o]. Peer N is the late rank; peer −1 is nobody.

    Attributes:
      ranks: number of ranks n = N + 1, the late one included.
      colours: colour of each age 1, 2, ..., A; it says which of the last chunks a chunk beyond the last stands for.
      send_peer: offset that offset o sends to, length N.
      send_age: rounds since the chunk that offset o sends first left the late rank, length N.
      receive_peer: offset that offset o receives from, length N.
      receive_age: rounds since the chunk that offset o receives first left the late rank, length N.
    """

    ranks: int
    colours: tuple[int, ...]
    send_peer: tuple[int, ...]
    send_age: tuple[int, ...]
    receive_peer: tuple[int, ...]
    receive_age: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises PlanError unless the tables fit together; that they spread every chunk is left to the verifier."""
        others, ages = self.ranks - 1, len(self.colours)
        tables = (self.send_peer, self.send_age, self.receive_peer, self.receive_age)
        if others < 1 or any(len(table) != others for table in tables):
            raise PlanError(f"template: {self.ranks} ranks need tables of {others} entries, at least 1.{_CURE}")
        if not set(self.colours) <= {0, 1} or ages != others.bit_length() + max(self.colours, default=0):
            raise PlanError(f"template: {self.colours} are not the colours of the ages of {self.ranks} ranks.{_CURE}")
        sends = {Turn(src, dst, age) for src, (dst, age) in enumerate(zip(*tables[:2], strict=True))}
        receives = {Turn(src, dst, age) for dst, (src, age) in enumerate(zip(*tables[2:], strict=True))}
        sends = {turn for turn in sends if turn != (turn.src, NOBODY, NOBODY)}
        receives = {turn for turn in receives if turn != (NOBODY, turn.dst, NOBODY)}
        among = {turn for turn in sends if 0 <= turn.dst < others and 1 <= turn.age <= ages}
        home = sends - among
        if receives != among | {Turn(others, 0, 0)}:
            odd = min(receives ^ (among | {Turn(others, 0, 0)}))
            raise PlanError(f"template: {odd} is in the table of senders or of receivers, but not in both.{_CURE}")
        returns = {(turn.dst, 1 <= turn.age <= ages) for turn in home}
        if home != {Turn(0, others, 0)} and (len(home) != 1 or returns != {(others, True)}):
            raise PlanError(f"template: {sorted(home)} are not one row to the late rank.{_CURE}")

    @property
    def home(self) -> Turn:
        """The one row to the late rank: age 0 is an exchange with it, a greater age returns the finished chunk."""
        src = self.send_peer.index(self.ranks - 1)
        return Turn(src, self.ranks - 1, self.send_age[src])

    @classmethod
    def of_turns(cls, ranks: int, colours: Iterable[int], turns: Iterable[Turn]) -> Template:
        """The template with these rows, of which each offset sends one and receives one at most; N is the late rank."""
        others = ranks - 1
        send_peer, send_age, receive_peer, receive_age = ([NOBODY] * ranks for _ in range(4))
        for src, dst, age in turns:
            send_peer[src], send_age[src] = dst, age
            receive_peer[dst], receive_age[dst] = src, age
        tables = (tuple(table[:others]) for table in (send_peer, send_age, receive_peer, receive_age))
        return cls(ranks, tuple(colours), *tables)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """All rows: the one from the late rank (offset N), then those of the others by their offset."""
        sends = zip(range(self.ranks - 1), self.send_peer, self.send_age, strict=True)
        return (Turn(self.ranks - 1, 0, 0), *(Turn(*send) for send in sends if send[1] != NOBODY))

    @cached_property
    def among(self) -> tuple[Turn, ...]:
        """The rows from one of the others to another."""
        return tuple(turn for turn in self.turns if self.ranks - 1 not in (turn.src, turn.dst))

    def least(self, chunks: int) -> int:
        """The number of chunks whose last ones stand for those of so many.

        When the last chunk leaves the late rank, only the last A are on their way. Where there is another one before
        them, one chunk more delays them by a round and turns what they do by one rank.
        """
        return min(chunks, len(self.colours) + 1)

    @property
    def pairwise(self) -> bool:
        """Whether nobody sends to one rank while receiving from another."""
        return all(NOBODY in (s, r) or s == r for s, r in zip(self.send_peer, self.receive_peer, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Integers and lists of small integers, one per field."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Template:
        """The inverse of `to_json`, for data from anywhere.

        Raises:
          PlanError: a field is missing, unknown or of the wrong type, or the tables are not consistent.
        """
        names = [field.name for field in fields(cls)]
        if sorted(data) != sorted(names):
            raise PlanError(f"template: the fields are {sorted(data)}; they must be {sorted(names)}.{_CURE}")
        ranks = data["ranks"]
        if type(ranks) is not int:
            raise PlanError(f"template: ranks is {ranks!r}; it must be an integer.{_CURE}")
        for name in names[1:]:
            if not isinstance(data[name], list):
                raise PlanError(f"template: {name} is {data[name]!r}; it must be a list of integers.{_CURE}")
            for index, value in enumerate(data[name]):
                if type(value) is not int:
                    raise PlanError(f"template: {name}[{index}] is {value!r}; it must be an integer.{_CURE}")
        return cls(ranks, *(tuple(data[name]) for name in names[1:]))


_CURE = "\n  Cure: make the plan again with `jaxcomm plan`."


@lru_cache
def template(ranks: int) -> Template:
    """The template with which a straggler schedule among n ranks takes the fewest rounds.

    In closed form for n = 2^L (pairwise) and n = 2^L − 1; otherwise OR-Tools finds it, pairwise where that exists.
    The same n always gives the same template.

    Args:
      ranks: number of ranks n, at least 2, the late one included.

    Raises:
      PlanError: OR-Tools is needed and not installed, or no template was found.
    """
    if ranks & (ranks - 1) == 0 or ranks & (ranks + 1) == 0:
        return _closed_form(ranks)
    from jaxcomm.schedules.template_search import search  # the only use of OR-Tools

    return search(ranks)


def _closed_form(ranks: int) -> Template:
    """Walks down the circle of offsets, as a rank does from round to round, from one reception to the next.

    A rank that receives a chunk at age a < L keeps it until it has passed it on at age L, so the step has length L − a.
    Offsets where no step starts receive at age L, a chunk that they need not pass on.
    """
    others, last = ranks - 1, (ranks - 1).bit_length()
    pairwise = ranks & (ranks - 1) == 0
    starts = [0] + [age for age in range(1, last) for _ in range(1 << (age - 1))]
    if not pairwise:
        starts.pop()  # the rank that it stands for returns the finished chunk to the late rank instead
    holders: dict[int, list[int]] = {age: [] for age in range(1, last + 1)}
    receivers: dict[int, list[int]] = {age: [] for age in range(last + 1)}
    idle = set(range(others))
    offset = 0
    for age in starts:
        receivers[age].append(offset)
        idle.discard(offset)
        for later in range(age + 1, last + 1):
            offset = (offset - 1) % others
            holders[later].append(offset)
    receivers[last] = sorted(idle)

    turns = [Turn(others, 0, 0)]
    if pairwise:
        turns.append(Turn(0, others, 0))
        for age in range(1, last):
            for u, v in zip(holders[age], receivers[age], strict=True):
                turns += Turn(u, v, age), Turn(v, u, last)
    else:
        turns.append(Turn(holders[last - 1].pop(), others, last - 1))
        for age in range(1, last + 1):
            turns += (Turn(u, v, age) for u, v in zip(holders[age], receivers[age], strict=True))
    return Template.of_turns(ranks, [0] * last, turns)
