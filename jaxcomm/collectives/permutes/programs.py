"""Compiles and verifies a schedule's permutes for calls of one size, and limits how many permutes XLA compiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from jaxcomm.collectives.request import Operand
from jaxcomm.program.permute_verifier import verify_permutes
from jaxcomm.program.permutes import Permutes, compile_permutes
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.schedule import ALIGNMENT

_MOST_PERMUTES: Final = 200  # maximum number of permutes in a compiled program; XLA takes long to compile more
_LARGE: Final = 1 << 20  # bytes; from this size on, a message of many chunks takes several permutes, to save memory
_PARTS: Final = 8  # in calls of _LARGE bytes or more, a permute moves at most 1/8 of the buffer


def compiled(schedule: Schedule, nbytes: int) -> Permutes:
    """The permutes that calls of this size run.

    Args:
      schedule: any schedule.
      nbytes: the bytes of one rank's operands.
    """
    return _compiled(schedule, nbytes >= _LARGE)


def why_not(schedule: Schedule, nbytes: int, in_rounds: bool = False) -> str | None:
    """The reason why calls of this size cannot run a schedule by permutes; None if they can.

    Args:
      schedule: any schedule.
      nbytes: the bytes of one rank's operands.
      in_rounds: whether even a late join runs in rounds, instead of as whole collectives.
    """
    if schedule.kind == "late_join" and not in_rounds:
        length = schedule.num_chunks * ((schedule.ranks - 1).bit_length() + 1)
    else:
        length = compiled(schedule, nbytes).length
    if length <= _MOST_PERMUTES:
        return None
    chunks = schedule.num_chunks
    return f"{schedule.kind} of {schedule.ranks} ranks and {chunks} chunks takes {length} different permutes"


def fits(operands: Sequence[Operand], devices: int) -> bool:
    """Whether all devices' operands, laid flat together, have fewer than 2³¹ elements."""
    return sum(math.prod(shape) + ALIGNMENT for shape, _ in operands) * devices < 2**31


@functools.lru_cache(maxsize=256)
def _compiled(schedule: Schedule, is_large: bool) -> Permutes:
    permutes = compile_permutes(schedule, max(1, schedule.num_chunks // _PARTS) if is_large else None)
    verify_permutes(permutes, schedule.collective)
    return permutes
