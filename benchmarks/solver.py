"""Compares searched schedules on hosts with the best hierarchical schedule and the bound, by the planner's model.

python benchmarks/solver.py [transfer time of the buffer within a host, in latencies]
"""

from __future__ import annotations

import itertools
import sys
import time

from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.planner.schedules import Setting
from jaxcomm.planner.schedules.network_search import solve_size
from jaxcomm.planner.schedules.on_hosts import hierarchical_specs, late_hierarchical_specs
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.report.tables import table
from jaxcomm.schedules import template
from jaxcomm.simulate import Delays

SHAPES = [(2, 4), (4, 4)]
DELAYS = [0.0, 0.5, 4.0]
ALPHA, BETA = 1e-5, 1e-10
TIME_LIMIT = 2.5  # a size's part of the 10 s of a plan


def main() -> None:
    """Measures and prints. Times and delays are multiples of the buffer's transfer time within a host."""
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 64.0
    began = time.process_time()
    rows = [
        [f"{hosts}×{per_host}, NIC per {nic}, {slow:g}", *(cell(hosts, per_host, nic, slow, size, d) for d in DELAYS)]
        for (hosts, per_host), nic, slow in itertools.product(SHAPES, ("rank", "host"), (1.0, 2.0, 4.0, 9.0))
    ]
    print("hierarchical → searched, chunks, bound of these, gap")
    print(table(["hosts × ranks, cost between hosts", *(f"d = {delay:g}" for delay in DELAYS)], rows))
    print(f"{(time.process_time() - began) / len(rows) / len(DELAYS):.1f} s each")


def cell(hosts: int, per_host: int, nic: str, slow: float, size: float, delay: float) -> str:
    """The time of one network and delay."""
    ranks = hosts * per_host
    topology = Topology.model_validate({"hosts": [r // per_host for r in range(ranks)], "nic": nic, "slow": slow})
    unit = size * ALPHA
    late = LateRanks({ROLE: per_host - 1}, Delays([delay * unit]))
    setting = Setting(
        ranks=ranks,
        links=Cluster(ALPHA, BETA, topology),
        ports=16,
        min_gain=0.02,
        late=late,
        template=template(ranks),
    )
    nbytes = round(unit / BETA)
    specs = [*hierarchical_specs(setting, nbytes), *late_hierarchical_specs(setting, nbytes)]
    usual = min(setting.seconds(spec, nbytes) for spec in specs)
    found = solve_size(setting, nbytes, TIME_LIMIT, 0)
    times = f"{usual / unit:.2f} → {found.seconds / unit:.2f}"
    return f"{times}, {found.chunks}, {found.bound_s / unit:.2f}, {found.gap:.0%}"


if __name__ == "__main__":
    main()
