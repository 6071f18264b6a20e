"""Compares the plan's choice for every small size with the best for that size, of all chunk counts and coverages.

    python benchmarks/small_sizes.py

Times are by the planner's model, for links on which a message's latency is worth few bytes or many. Sizes are every 64
bytes up to 16 KiB, and eight per octave up to 4 MiB. Ratios may be below 1, because the best is of the straggler family
and a plan may choose other schedules.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jaxcomm import planner  # noqa: E402
from jaxcomm.report.tables import table  # noqa: E402
from jaxcomm.schedules.schedule import ALIGNMENT  # noqa: E402
from tests.planner.small_sizes import behind, late_by  # noqa: E402

RANKS, LATENCIES = (4, 8, 16), (100, 300, 1000, 3000, 10_000, 100_000)  # the latter in bytes: α/β
SIZES = [*range(ALIGNMENT, 2**14, ALIGNMENT), *(round(2 ** (14 + i / 8)) for i in range(65))]


def main() -> None:
    """Plans, compares and prints."""
    rows = []
    for ranks, latency, delay in itertools.product(RANKS, LATENCIES, ("none", "some", "long")):
        source = late_by(ranks, latency, delay)
        start = time.process_time()
        plan = planner.plan(source)
        seconds = time.process_time() - start
        ratios = [behind(plan, source, nbytes) for nbytes in SIZES]
        worst = int(np.argmax(ratios))
        found = [f"{ratios[worst]:.3f}", str(SIZES[worst]), str(len(plan.collectives)), f"{seconds:.2f} s"]
        rows.append([str(ranks), str(latency), delay, *found])
    print(table(["ranks", "α/β, bytes", "delay", "worst ratio", "at bytes", "byte ranges", "planning"], rows))


if __name__ == "__main__":
    main()
