"""The description of a call site, an attribute of the core's custom call. `cc/ffi/sites/site_record.h` reads it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple


class SiteGroup(NamedTuple):
    """Ranks that call together.

    Attributes:
      ranks: the process and the device of each rank.
      schedules: the core's names of the schedules that the group's calls run. A group of one rank has no schedule.
        Larger groups have one schedule, or several if the site has a rule. If the site has `groups_by_operand`, there
        is one schedule for each number of ranks: 2, 3, and so on.
    """

    ranks: Sequence[tuple[int, int]]
    schedules: Sequence[str]


class SiteRecord(NamedTuple):
    """A call site.

    Attributes:
      name, axes, plan: for error texts and statistics.
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      reduction: "sum", "max" or "min".
      groups_by_operand: whether the first operand divides each of `groups` into smaller groups. The operand then has
        one number per rank: the number of the rank's group.
      groups: the groups of ranks.
      rule: the fields of a `Rule` of `jaxcomm/collectives/choice.py`: rank, seconds, tries and lost_rails.
      drop: for a sum that may lose packets, the fields of an `AllowedDrop` of `jaxcomm/collectives/request.py`; None
        for other calls.
      between: for a call between processes, the fields that identify the call in all these processes: module, lowering,
        number and the user's line; None for other calls.
      is_in_place: only for all-reduces: whether each result has its operand's memory.
    """

    name: str
    axes: str
    kind: str
    reduction: str
    plan: str
    groups_by_operand: bool
    groups: Sequence[SiteGroup]
    rule: tuple[int, float, bool, Sequence[tuple[int, str]]] | None = None
    drop: tuple[Sequence[float], int, float | None, bool, int | None] | None = None
    between: tuple[int, int, int, str] | None = None
    is_in_place: bool = True

    def encode(self) -> str:
        """The fields as text, each followed by a space. A real number is written as the integer with the same bits."""
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
            shares, segment_bytes, time_limit_s, makes_up, priority = self.drop
            fields += [_number(len(shares)), *map(_real, shares), _number(segment_bytes)]
            fields += [
                _number(time_limit_s is not None),
                *([] if time_limit_s is None else [_real(time_limit_s)]),
                _number(makes_up),
                _number(priority is not None),
                *([] if priority is None else [_number(priority)]),
            ]
        fields.append(_number(self.between is not None))
        if self.between is not None:
            *numbers, line = self.between
            fields += [*map(_number, numbers), _text(line)]
        fields.append(_number(self.is_in_place))
        return "".join(fields)


def devices_of(site: bytes) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """The kind of an encoded call site, and the devices of its groups.

    Raises:
      ValueError: the encoded call site is damaged.
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
