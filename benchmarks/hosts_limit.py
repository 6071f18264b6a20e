"""Compares hierarchical schedules of few chunks with T(d), the limit for many chunks, by runs without latency.

python benchmarks/hosts_limit.py [chunks per rank]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jaxcomm import schedules  # noqa: E402
from jaxcomm.plan.specs import links_of  # noqa: E402
from jaxcomm.profile.cluster import Topology  # noqa: E402
from jaxcomm.report.tables import table  # noqa: E402
from tests.planner.test_hosts import limit, shares, took  # noqa: E402

SHAPES = [(2, 4), (4, 4), (2, 8)]
DELAYS = [0.0, 0.25, 0.5, 1.0, 4.0]
PARTS = (1.0, 1.25, 1.5, 0.75)  # tried factors of the share that is summed before the late rank's arrival


def main() -> None:
    """Measures and prints. Delays are multiples of the buffer's transfer time within a host."""
    per_rank = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rows = []
    for (hosts, per_host), nic, slow in itertools.product(SHAPES, ("rank", "host"), (1.0, 2.0, 4.0, 9.0)):
        cells = [f"{beside_limit(hosts, per_host, nic, slow, delay, per_rank):.2f}" for delay in DELAYS]
        rows.append([f"{hosts}×{per_host}, NIC per {nic}, {slow:g}", *cells])
    print(table(["hosts × ranks, cost between hosts", *(f"d = {delay:g}" for delay in DELAYS)], rows))


def beside_limit(hosts: int, per_host: int, nic: Any, slow: float, delay: float, per_rank: int) -> float:
    """The best time for a delay, as a multiple of T(d)."""
    ranks = hosts * per_host
    chunks = ranks * per_rank
    topology = Topology(hosts=tuple(rank // per_host for rank in range(ranks)), nic=nic, slow=slow)
    rule = shares(hosts, per_host, nic, slow, delay)
    early = {tuple(round(min(1.0, part * share) * chunks) for share in rule) for part in PARTS} if delay else {()}
    late = [per_host - 1] if delay else []
    made = [schedules.hierarchical(links_of(topology), chunks, late, *before) for before in early]
    return min(took(each, topology, delay) for each in made) / limit(hosts, per_host, nic, slow, delay)


if __name__ == "__main__":
    main()
