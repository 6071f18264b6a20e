"""One colour per meaning in all pictures, from Okabe and Ito's palette, which colour-blind readers can distinguish."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

INK: Final = "#222222"  # text and outlines
PALE: Final = "#cccccc"  # axes and grids
GREY: Final = "#777777"  # outlines of boxes, and background lines
LATE: Final = "#d55e00"  # the late rank, and its schedule
PLAN: Final = "#0072b2"
PLAIN: Final = "#56b4e9"  # direct, which runs without a plan
RING: Final = "#e69f00"
HALVING: Final = "#009e73"
LAX: Final = "#cc79a7"
BROADCAST: Final = "#999999"
BOUND: Final = "#000000"

# The same colours, lightened, for boxes with text in them.
BEFORE, AFTER, COPY = "#8ecdf0", "#f4bb4a", "#9adbbd"
# Three colours: the late rank's row, then the background and the stripes of this row before the rank's arrival.
ABSENT: Final = ("#fdf3f2", "#fbeceb", "#e6b0aa")

# If a name contains several of these words, the first word in this table decides.
_MEANINGS: Final = {
    "no plan": PLAIN,
    "direct": PLAIN,
    "lax": LAX,
    "bound": BOUND,
    "ring": RING,
    "halving": HALVING,
    "broadcast": BROADCAST,
    "straggler": LATE,
    "late": LATE,
    "plan": PLAN,
}
_OTHERS: Final = (PLAN, RING, HALVING, LATE, LAX, PLAIN, BROADCAST, BOUND)


def of_names(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each line of a plot.

    A line gets the colour of its meaning or, if another line has this colour, an unused colour. If all colours are
    used, lines share colours.

    Args:
      names: names of the lines, such as `ring`, `jaxcomm.pmean, no plan` or `old rail`.
    """
    wanted = {name: _meant(name) for name in names}
    found: dict[str, str] = {}
    for name, colour in wanted.items():
        if colour and colour not in found.values():
            found[name] = colour
    for number, name in enumerate(name for name in wanted if name not in found):
        free = [colour for colour in _OTHERS if colour not in found.values()]
        found[name] = free[0] if free else _OTHERS[number % len(_OTHERS)]
    return found


def _meant(name: str) -> str | None:
    return next((_MEANINGS[word] for word in _MEANINGS if re.search(rf"\b{word}", name.lower())), None)
