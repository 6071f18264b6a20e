"""The schedule of each range of sizes: where the best one changes, and the sizes that are known to occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jaxcomm.plan.values import Entry, Nccl, Spec
from jaxcomm.planner.byte_ranges import TOLERANCE, Choices, Progress, byte_ranges, sizes_between
from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.schedules.schedule import ALIGNMENT

STEPS: Final = 4  # sizes per octave that are looked at
LEAST_JUMP: Final = 1.01  # a size is looked at if one byte more takes this many times as long
UNEVEN: Final = 1.03  # TOLERANCE where alignment alone may take longer: else ranges end at every other jump


def entries(setting: Setting, known: Mapping[int, Spec], progress: Progress) -> tuple[Entry, ...]:
    """The entries of a plan, covering every size.

    Args:
      setting: of the plan.
      known: the choice for sizes that are known to occur; each gets an entry of its own.
      progress: called with the finished share.
    """

    links = setting.links
    is_even = bool(links.topology or setting.timed)  # a topology's clock and timed sizes know no alignment
    tolerance = UNEVEN if not is_even and ALIGNMENT * links.beta > (LEAST_JUMP - 1) * links.alpha else TOLERANCE

    def serves(choice: Spec, nbytes: int, best: Spec) -> bool:
        return choice == best or setting.seconds(choice, nbytes) <= tolerance * setting.seconds(best, nbytes)

    def jumps(choice: Spec, low: int, high: int) -> Iterator[int]:
        """The sizes at which the choice's chunks grow by the alignment: there it is the farthest behind the best."""
        if is_even or isinstance(choice, Nccl):
            return
        full = ALIGNMENT * setting.schedule(choice).num_chunks
        for nbytes in range(-(-low // full) * full, high, full):
            if setting.seconds(choice, nbytes + 1) <= LEAST_JUMP * setting.seconds(choice, nbytes):
                return  # and the longer a chunk is, the less
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
    """The kind of schedule, or NCCL and the kind that runs where it does not."""
    return (spec.kind, spec.otherwise) if isinstance(spec, Nccl) else (spec.kind,)
