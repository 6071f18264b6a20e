"""What the core is asked for: a collective, its groups of devices, and the plan to follow."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from jaxcomm import communicator, ffi

Operand = tuple[tuple[int, ...], np.dtype[Any]]  # shape on one device, and element type


def extent(operands: Sequence[Operand]) -> tuple[int, str | None]:
    """The bytes of a rank's operands, and their element type, or None if they have several."""
    dtypes = {dtype.name for _, dtype in operands}
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in operands)
    return nbytes, dtypes.pop() if len(dtypes) == 1 else None


class Across(NamedTuple):
    """How a call is known in the processes that its ranks live in.

    Attributes:
      processes: of each group, in the order of its ranks.
      module: the compiled module, by its contents; this, `site` and `where` are alike in all processes.
      lowering: counts the modules that this process has lowered.
      site: counts the calls of the module.
      where: the line of the user's code, for messages.
    """

    processes: Sequence[Sequence[int]]
    module: int
    lowering: int
    site: int
    where: str


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective over groups of devices.

    Attributes:
      name: the public function, and of which bucket, for messages and statistics.
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      reduction: "sum", "max" or "min".
      axes: the axes' names, for messages.
      plan: hash of a plan, or "".
      groups: device ids of each group, in the order of its ranks; one has two ranks at least.
      divided: whether these groups, then of one size, are divided further by the first operand: int32, a number for
        each rank, the same for those that reduce together.
      across: if the ranks of a group live in several processes.
    """

    name: str
    kind: str
    reduction: str
    axes: str
    plan: str
    groups: Sequence[Sequence[int]]
    divided: bool = False
    across: Across | None = None

    @property
    def target(self) -> str:
        """The custom call's name."""
        return ffi.GROUPED if self.divided else ffi.ACROSS if self.across else ffi.TARGET

    @property
    def in_place(self) -> bool:
        """Whether each result takes its operand's memory."""
        return self.kind == "all_reduce"

    def whole(self, operands: int) -> range:
        """Which of so many operands have a first dimension that the core must see whole."""
        return range(1 if self.divided else 0 if self.in_place else operands)

    def attributes(self, operands: Sequence[Operand]) -> dict[str, Any]:
        """The attributes of the custom call; equal on all processes."""
        if self.divided:
            return {
                "name": self.name,
                "axes": self.axes,
                "programs": "".join(f"all_reduce/{ranks}," for ranks in range(2, len(self.groups[0]) + 1)),
                "devices": np.concatenate(self.groups).astype(np.int32),
            }
        (nbytes, dtype), where = extent(operands), f"{self.name} over '{self.axes}'"
        sizes = [len(group) for group in self.groups]
        choose = communicator.choose_messages if self.across else communicator.choose
        choices = {ranks: choose(self.kind, ranks, nbytes, dtype, self.plan, where) for ranks in {*sizes} - {1}}
        attributes = {
            "name": self.name,
            "kind": self.kind,
            "reduction": self.reduction,
            "axes": self.axes,
            "programs": "".join(f"{choices[ranks].program if ranks > 1 else ''}," for ranks in sizes),
            "plan": choices[max(sizes)].plan,
            "groups": np.concatenate(self.groups).astype(np.int32),
            "sizes": np.array(sizes, np.int32),
        }
        if self.across:
            processes = np.concatenate(self.across.processes).astype(np.int32)
            attributes |= self.across._asdict() | {"processes": processes}
        return attributes

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The inverse of `to_json`."""
        values = json.loads(text)
        return cls(**values | {"across": Across(*values["across"]) if values["across"] else None})
