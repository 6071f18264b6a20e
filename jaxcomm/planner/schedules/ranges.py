"""The schedule of each range of sizes.

Ranges end where the best schedule changes. Sizes that are known to occur have ranges of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jaxcomm.plan.values import Entry, Nccl, Spec
from jaxcomm.planner.byte_ranges import TOLERANCE, Choices, Progress, byte_ranges, sizes_between
from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.schedules.schedule import ALIGNMENT

STEPS: Final = 4  # sizes tried per octave
LEAST_JUMP: Final = 1.01  # a size is tried if one more byte multiplies the time by more than this factor
# Replaces TOLERANCE if rounding chunks up to their alignment may multiply the time by more than LEAST_JUMP. The time
# then jumps wherever chunks grow, and most of these jumps should not end a range.
UNEVEN: Final = 1.03


def entries(setting: Setting, known: Mapping[int, Spec], progress: Progress) -> tuple[Entry, ...]:
    """The entries of a plan, covering every size.

    Args:
      setting: the plan's setting.
      known: the choice for sizes that are known to occur; each gets an entry of its own.
      progress: called with the finished share.
    """

    links = setting.links
    is_even = bool(links.topology or setting.timed)  # times on a topology, and timed schedules, ignore alignment
    tolerance = UNEVEN if not is_even and ALIGNMENT * links.beta > (LEAST_JUMP - 1) * links.alpha else TOLERANCE

    def serves(choice: Spec, nbytes: int, best: Spec) -> bool:
        return choice == best or setting.seconds(choice, nbytes) <= tolerance * setting.seconds(best, nbytes)

    def jumps(choice: Spec, low: int, high: int) -> Iterator[int]:
        """Sizes at which the choice's chunks get longer, by ALIGNMENT.

        At these sizes, the choice's time exceeds the best choice's time most.
        """
        if is_even or isinstance(choice, Nccl):
            return
        full = ALIGNMENT * setting.schedule(choice).num_chunks
        for nbytes in range(-(-low // full) * full, high, full):
            if setting.seconds(choice, nbytes + 1) <= LEAST_JUMP * setting.seconds(choice, nbytes):
                return  # with longer chunks, the jump is even smaller
            yield nbytes + 1

    choices = Choices(lambda nbytes: choose(setting, nbytes), _runs, serves, jumps)
    sizes = sizes_between(known, STEPS)
    if not is_even:
        choices, sizes = choices._replace(finest=1.0, step=ALIGNMENT), [ALIGNMENT, 2 * ALIGNMENT, *sizes]
    cuts = {*known, *(nbytes + 1 for nbytes in known)}
    return tuple(
        entry(setting, low, high, low, known[low]) if low in known else entry(setting, low, high, reference, choice)
        for low, high, reference, choice in byte_ranges(choices, sizes, cuts, progress)
    )


def _runs(spec: Spec) -> tuple[str, ...]:
    """The kind of schedule; for NCCL also the kind that runs where NCCL does not."""
    return (spec.kind, spec.otherwise) if isinstance(spec, Nccl) else (spec.kind,)
