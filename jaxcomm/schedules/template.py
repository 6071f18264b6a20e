"""The rotational template of a straggler schedule: four tables of small integers, whatever the number of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from jaxcomm.errors import PlanError

NOBODY = -1


class TemplateStep(NamedTuple):
    """One row of a `Template`: offset `src` sends the chunk of age `age` to offset `dst`."""

    src: int
    dst: int
    age: int


@dataclass(frozen=True)
class Template:
    """The transfers of one round, relative to the rank that the late rank sends to.

    Write N for the number of ranks that are not late. In round r the rank of offset o is the one with index
    (r + o) mod N among these N. This rank sends chunk r − send_age[o] to the rank of offset send_peer[o] and receives
    chunk r − receive_age[o] from the rank of offset receive_peer[o]. Peer N is the late rank; −1 means that there is no
    peer.

    Attributes:
      ranks: number of ranks n = N + 1, the late one included.
      colours: colour of each age 1, 2, ..., A. A chunk number beyond the last chunk stands for one of the last chunks;
        the colour says which one.
      send_peer: offset that offset o sends to, length N.
      send_age: age of the chunk that offset o sends, in rounds since the late rank sent that chunk; length N.
      receive_peer: offset that offset o receives from, length N.
      receive_age: age of the chunk that offset o receives, in rounds since the late rank sent that chunk; length N.
    """

    ranks: int
    colours: tuple[int, ...]
    send_peer: tuple[int, ...]
    send_age: tuple[int, ...]
    receive_peer: tuple[int, ...]
    receive_age: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises PlanError unless the tables fit together. The verifier checks that the tables spread every chunk."""
        others, ages = self.ranks - 1, len(self.colours)
        tables = (self.send_peer, self.send_age, self.receive_peer, self.receive_age)
        if others < 1 or any(len(table) != others for table in tables):
            raise PlanError(f"template: {self.ranks} ranks need tables of {others} entries, at least 1.{_CURE}")
        if not set(self.colours) <= {0, 1} or ages != others.bit_length() + max(self.colours, default=0):
            raise PlanError(f"template: {self.colours} are not the colours of the ages of {self.ranks} ranks.{_CURE}")
        sends = {TemplateStep(src, dst, age) for src, (dst, age) in enumerate(zip(*tables[:2], strict=True))}
        receives = {TemplateStep(src, dst, age) for dst, (src, age) in enumerate(zip(*tables[2:], strict=True))}
        sends = {step for step in sends if step != (step.src, NOBODY, NOBODY)}
        receives = {step for step in receives if step != (NOBODY, step.dst, NOBODY)}
        among = {step for step in sends if 0 <= step.dst < others and 1 <= step.age <= ages}
        home = sends - among
        if receives != among | {TemplateStep(others, 0, 0)}:
            odd = min(receives ^ (among | {TemplateStep(others, 0, 0)}))
            raise PlanError(f"template: {odd} is in the table of senders or of receivers, but not in both.{_CURE}")
        returns = {(step.dst, 1 <= step.age <= ages) for step in home}
        if home != {TemplateStep(0, others, 0)} and (len(home) != 1 or returns != {(others, True)}):
            raise PlanError(f"template: {sorted(home)} are not one row to the late rank.{_CURE}")

    @property
    def home(self) -> TemplateStep:
        """The row that sends to the late rank. At age 0 it is an exchange; at other ages it returns the final sum."""
        src = self.send_peer.index(self.ranks - 1)
        return TemplateStep(src, self.ranks - 1, self.send_age[src])

    @classmethod
    def of_steps(cls, ranks: int, colours: Iterable[int], steps: Iterable[TemplateStep]) -> Template:
        """Returns the template with these steps. Each offset is `src` of at most one step and `dst` of at most one.

        Offset `ranks` - 1 is the late rank.
        """
        others = ranks - 1
        send_peer, send_age, receive_peer, receive_age = ([NOBODY] * ranks for _ in range(4))
        for src, dst, age in steps:
            send_peer[src], send_age[src] = dst, age
            receive_peer[dst], receive_age[dst] = src, age
        tables = (tuple(table[:others]) for table in (send_peer, send_age, receive_peer, receive_age))
        return cls(ranks, tuple(colours), *tables)

    @cached_property
    def steps(self) -> tuple[TemplateStep, ...]:
        """All rows: first the late rank's row (offset N), then the other rows by the sender's offset."""
        sends = zip(range(self.ranks - 1), self.send_peer, self.send_age, strict=True)
        return (TemplateStep(self.ranks - 1, 0, 0), *(TemplateStep(*send) for send in sends if send[1] != NOBODY))

    @cached_property
    def among(self) -> tuple[TemplateStep, ...]:
        """The rows in which neither the sender nor the receiver is the late rank."""
        return tuple(step for step in self.steps if self.ranks - 1 not in (step.src, step.dst))

    def least(self, chunks: int) -> int:
        """The least number of chunks such that a proof for this number also holds for `chunks`.

        Let A be the number of ages. When the last chunk leaves the late rank, only the last A chunks still travel. If
        there are A + 1 chunks or more, one more chunk only delays the transfers of the last A chunks by a round, and
        shifts them by one rank.
        """
        return min(chunks, len(self.colours) + 1)

    @property
    def pairwise(self) -> bool:
        """Whether every rank that sends and receives in one round does so with a single peer."""
        return all(NOBODY in (s, r) or s == r for s, r in zip(self.send_peer, self.receive_peer, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Returns one entry per field, an integer or a list of small integers."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Template:
        """The inverse of `to_json`, with all checks.

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
