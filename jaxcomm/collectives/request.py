"""A collective that is asked for: over which devices, by which plan. It is data; the lowering chooses programs."""

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
      number: the device's, as the back end counts them: on CPUs JAX's id, on GPUs CUDA's number in the process.
    """

    process: int
    number: int


Groups = tuple[tuple[Device, ...], ...]


class AllowedDrop(NamedTuple):
    """The parts of a sum that the network may lose; the first operand marks the segments that it must not.

    Attributes:
      shares: of each other operand.
      segment_bytes: of an operand.
    """

    shares: tuple[float, ...]
    segment_bytes: int


class Site(NamedTuple):
    """How the processes that a call spans know it.

    Attributes:
      module: a hash of the compiled module's types and first line.
      lowering: counts the modules that this process has lowered.
      number: counts the module's calls over the same groups of devices; alike in all processes.
      line: of the user's code, for messages: "train.py:57".
    """

    module: int
    lowering: int
    number: int
    line: str


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective over groups of devices.

    Attributes:
      name: the public function, and of which bucket, for messages and statistics.
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      reduction: "sum", "max" or "min".
      axes: the axes' names, for messages.
      plan: hash of a plan, or "".
      groups: the devices of each group, in the order of its ranks; one group has two ranks at least.
      groups_by_operand: whether the first operand, int32, has a number for each rank, the same for ranks that reduce
        together; all groups then have one size, and each is divided for itself.
      site: of a call that spans processes, on CPUs.
      drop: of a sum that spans processes; None: nothing may be lost.
      hosts: of each process a number of its host; (): the call's program does not depend on them.
      tries: whether calls first compare the plan's schedule with the default one.
    """

    name: str
    kind: str
    reduction: str
    axes: str
    plan: str
    groups: Groups
    groups_by_operand: bool = False
    site: Site | None = None
    drop: AllowedDrop | None = None
    hosts: tuple[int, ...] = ()
    tries: bool = False

    @property
    def call(self) -> str:
        """The call, for messages: "psum over 'data'"."""
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
    """The bytes of a rank's operands, and their element type, or None if they have several."""
    dtypes = {dtype.name for _, dtype in operands}
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in operands)
    return nbytes, dtypes.pop() if len(dtypes) == 1 else None
