"""Time of a late rank's join by the model: one chunk at a time, or one chunk with every other rank at once.

Run from the repository's root: `.venv/bin/python benchmarks/join.py`
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxcomm import schedules, simulate
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.schedules import Schedule

_RANKS = 8
_ALPHA, _BETA = 3e-6, 1 / 450e9  # assumed: a round of the fused kernel, a port of NVLink 4
_SIZES = tuple(1 << power for power in range(16, 31, 2))
_KINDS: dict[str, Callable[[int, int, int], Schedule]] = {
    "straggler": schedules.straggler,
    "direct_join": schedules.direct_join,
}


def main() -> None:
    """Prints each schedule's best number of chunks with its time after the arrival, and the buffers moved per port."""
    rows = []
    for nbytes in _SIZES:
        row = [bytes_text(nbytes)]
        for make in _KINDS.values():
            best = min(_candidates(make), key=lambda schedule: schedule.seconds(nbytes, _ALPHA, _BETA))
            row += [str(best.num_chunks), seconds_text(best.seconds(nbytes, _ALPHA, _BETA))]
        rows.append([*row, seconds_text(nbytes * _BETA)])
    print(table(["size", *(text for kind in _KINDS for text in ("chunks", kind)), "its bytes alone"], rows))

    rows = []
    for kind, make in _KINDS.items():
        found = simulate.ports(make(_RANKS, 0, 4 * (_RANKS - 1)))
        passes = [found.sends[0], found.sends[1:].max(), found.receives[0], found.receives[1:].max()]
        rows.append([kind, *(f"{float(each):.3f}" for each in passes)])
    print(table(["program of", "out: late", "out: others", "in: late", "in: others"], rows))


def _candidates(make: Callable[[int, int, int], Schedule]) -> list[Schedule]:
    turns = np.unique(np.geomspace(1, 512, 60).astype(int)).tolist()
    return [make(_RANKS, 0, chunks) for chunks in (1, *((_RANKS - 1) * turn for turn in turns))]


if __name__ == "__main__":
    main()
