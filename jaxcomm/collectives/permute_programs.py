"""The permutes of a schedule for calls of a size, proved, and the limits of the programs that XLA compiles."""

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

_MOST_PERMUTES: Final = 200  # of a compiled program, for the time that XLA takes to compile it
_LARGE: Final = 1 << 20  # bytes from which messages of many chunks go in several permutes, for less memory
_PARTS: Final = 8  # of the buffer, at least, that such messages are cut into


def compiled(schedule: Schedule, nbytes: int) -> Permutes:
    """The permutes that calls of this size run.

    Args:
      schedule: any schedule.
      nbytes: of one rank's operands.
    """
    return _compiled(schedule, nbytes >= _LARGE)


def why_not(schedule: Schedule, nbytes: int, in_rounds: bool = False) -> str | None:
    """The reason for which no call of this size runs a schedule by permutes; None: it does.

    Args:
      schedule: any schedule.
      nbytes: of one rank's operands.
      in_rounds: whether a late join, too, runs in rounds, and not as whole collectives.
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
