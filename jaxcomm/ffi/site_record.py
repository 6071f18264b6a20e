"""The description of a call site: the one attribute of the core's custom call, which `cc/ffi/site_record.h` reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple


class SiteGroup(NamedTuple):
    """Ranks that call together.

    Attributes:
      ranks: the process and the device of each.
      schedules: the names of what its calls run, in the core: none for one rank, else one; several if the site has a
        rule; with groups by operand those for 2, 3, … ranks.
    """

    ranks: Sequence[tuple[int, int]]
    schedules: Sequence[str]


class SiteRecord(NamedTuple):
    """A call site.

    Attributes:
      name, axes, plan: for messages and statistics.
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      reduction: "sum", "max" or "min".
      groups_by_operand: whether the first operand has the group of every rank, within each of `groups`.
      groups: the groups of ranks.
      rule: a late rank, the seconds by which it is late, whether the schedules are tried first, and the lost rails, as
        in `jaxcomm/collectives/choice.py`.
      drop: of a sum that may lose packets, the share of each leaf and the bytes of a segment.
      between: how the processes that the call spans know it: module, lowering, number and the user's line.
    """

    name: str
    axes: str
    kind: str
    reduction: str
    plan: str
    groups_by_operand: bool
    groups: Sequence[SiteGroup]
    rule: tuple[int, float, bool, Sequence[tuple[int, str]]] | None = None
    drop: tuple[Sequence[float], int] | None = None
    between: tuple[int, int, int, str] | None = None

    def encode(self) -> str:
        """Text of fields, each followed by a space; numbers are decimal, real numbers by their bits."""
        fields = [*map(_text, self[:5]), _number(self.groups_by_operand), _number(len(self.groups))]
        for ranks, schedules in self.groups:
            fields += [_number(len(ranks)), *(f"{process} {device} " for process, device in ranks)]
            fields += [_number(len(schedules)), *map(_text, schedules)]
        fields.append(_number(self.rule is not None))
        if self.rule is not None:
            rank, seconds, tries, lost_rails = self.rule
            fields += [_number(rank), _real(seconds), _number(tries), _number(len(lost_rails))]
            fields += [text for at, rail in lost_rails for text in (_number(at), _text(rail))]
        fields.append(_number(self.drop is not None))
        if self.drop is not None:
            shares, segment_bytes = self.drop
            fields += [_number(len(shares)), *map(_real, shares), _number(segment_bytes)]
        fields.append(_number(self.between is not None))
        if self.between is not None:
            *numbers, line = self.between
            fields += [*map(_number, numbers), _text(line)]
        return "".join(fields)


def devices_of(site: bytes) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """The kind of an encoded call site, and the devices of its groups.

    Raises:
      ValueError: it is damaged.
    """
    rest = site

    def text() -> str:
        nonlocal rest
        size, _, rest = rest.partition(b":")
        value, rest = rest[: int(size)], rest[int(size) + 1 :]
        return value.decode()

    def number() -> int:
        nonlocal rest
        value, _, rest = rest.partition(b" ")
        return int(value)

    def group() -> tuple[int, ...]:
        devices = tuple((number(), number())[1] for _ in range(number()))
        for _ in range(number()):
            text()
        return devices

    _name, _axes, kind, _reduction, _plan = (text() for _ in range(5))
    _groups_by_operand = number()
    return kind, tuple(group() for _ in range(number()))


def _text(value: object) -> str:
    text = str(value)
    return f"{len(text.encode())}:{text} "


def _number(value: int) -> str:
    return f"{int(value)} "


def _real(value: float) -> str:
    return _number(*struct.unpack("<q", struct.pack("<d", value)))
