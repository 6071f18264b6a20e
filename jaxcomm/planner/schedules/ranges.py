"""Which schedule for which range of sizes: where the best one changes, and the sizes that are known to occur."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jaxcomm.plan.values import Entry, Nccl, Spec
from jaxcomm.planner.byte_ranges import TOLERANCE, Choices, Progress, byte_ranges, sizes_between
from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting

STEPS: Final = 4  # sizes per octave that are looked at


def entries(setting: Setting, known: Mapping[int, Spec], progress: Progress) -> tuple[Entry, ...]:
    """The entries of a plan, covering every size.

    Args:
      setting: what the plan is made for.
      known: the choice for sizes that are known to occur; each gets an entry of its own.
      progress: called with the finished share.
    """

    def serves(choice: Spec, nbytes: int, best: Spec) -> bool:
        return choice == best or setting.seconds(choice, nbytes) <= TOLERANCE * setting.seconds(best, nbytes)

    choices = Choices(lambda nbytes: choose(setting, nbytes), _runs, serves)
    cuts = {*known, *(nbytes + 1 for nbytes in known)}
    return tuple(
        entry(setting, low, high, low, known[low]) if low in known else entry(setting, low, high, reference, choice)
        for low, high, reference, choice in byte_ranges(choices, sizes_between(known, STEPS), cuts, progress)
    )


def _runs(spec: Spec) -> tuple[str, ...]:
    """The kind of schedule, or NCCL and the kind that runs where it does not."""
    return (spec.kind, spec.otherwise) if isinstance(spec, Nccl) else (spec.kind,)
