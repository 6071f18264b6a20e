"""The request for a collective: its devices and its plan, as data. The lowering chooses the programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

Operand = tuple[tuple[int, ...], np.dtype[Any]]  # shape on one device, and element type


class Device(NamedTuple):
    """Where a rank runs.

    Attributes:
      process: the process's index in its job.
      number: the device's number in the back end: JAX's device id on CPUs, the CUDA ordinal in the process on GPUs.
    """

    process: int
    number: int


Groups = tuple[tuple[Device, ...], ...]


class AllowedDrop(NamedTuple):
    """The parts of a sum that the network may lose on the way to the rank that sums them.

    The sum's first operand marks the segments that must arrive. The first result marks the segments of this rank that
    are reported as lost.

    Attributes:
      shares: for each of the other operands, the share that may be lost.
      segment_bytes: bytes of each segment of an operand.
      time_limit_s: seconds for which the summing rank, from its own arrival, waits for all segments; only then may
        segments be lost. 0: the limit follows the median of earlier calls. None: segments may be lost at any time.
      makes_up: whether a lost segment counts as the mean of the other ranks' segments. If not, it counts as zeros and
        is reported.
      priority: the priority of the sum's packets, 0 first; None: the last priority.
    """

    shares: tuple[float, ...]
    segment_bytes: int
    time_limit_s: float | None = None
    makes_up: bool = True
    priority: int | None = None


class Site(NamedTuple):
    """The identity of a call in all processes that the call spans.

    Attributes:
      module: a hash of the compiled module's types, and of the line and devices of its first call.
      lowering: the module's number among the modules that this process has lowered.
      number: the call's number among the module's calls over the same groups of devices; equal in all processes.
      line: the line of the user's code, for error texts: "train.py:57".
    """

    module: int
    lowering: int
    number: int
    line: str


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective over groups of devices.

    Attributes:
      name: the public function and its bucket, for error texts and statistics.
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      reduction: "sum", "max" or "min".
      axes: the axes' names, for error texts.
      plan: hash of a plan, `choice.AUTO`, or "" for no plan.
      groups: the devices of each group, in the order of its ranks; at least one group has two ranks or more.
      groups_by_operand: whether the first operand divides each group further. This operand is an int32 array with a
        number for each rank, and ranks with equal numbers reduce together. All groups then have one size.
      site: identifies a call that spans processes, on CPUs; None for other calls.
      keeps_operands: only for all-reduces: whether the results have memory of their own.
      drop: the parts that may be lost, for a sum that spans processes; None: nothing may be lost.
      hosts: the host number of each process; (): the call's program does not depend on hosts.
      tries: whether the first calls compare the plan's schedule with the default schedule.
    """

    name: str
    kind: str
    reduction: str
    axes: str
    plan: str
    groups: Groups
    groups_by_operand: bool = False
    site: Site | None = None
    keeps_operands: bool = False
    drop: AllowedDrop | None = None
    hosts: tuple[int, ...] = ()
    tries: bool = False

    @property
    def call(self) -> str:
        """The call's name in error texts: "psum over 'data'"."""
        return f"{self.name} over '{self.axes}'"

    @property
    def sizes(self) -> list[int]:
        """The number of ranks in each group."""
        return [len(group) for group in self.groups]

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        groups = tuple(tuple(Device(*device) for device in group) for group in fields.pop("groups"))
        site, drop = fields.pop("site"), fields.pop("drop")
        allowed = AllowedDrop(tuple(drop[0]), *drop[1:]) if drop else None
        hosts = tuple(fields.pop("hosts"))
        return cls(**fields, groups=groups, site=Site(*site) if site else None, drop=allowed, hosts=hosts)


def extent(operands: Sequence[Operand]) -> tuple[int, str | None]:
    """The bytes of a rank's operands, and the operands' element type, or None if they have several types."""
    dtypes = {dtype.name for _, dtype in operands}
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in operands)
    return nbytes, dtypes.pop() if len(dtypes) == 1 else None
