"""Schedules where links have unlike rates beside the least time of any all-reduce, by runs without latency.

    python benchmarks/unlike_rates.py

The 300 clusters are those of `tests.planner.random_hosts.unlike_cluster`; chunks are 16 per rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jaxcomm.report.tables import table  # noqa: E402
from tests.planner.random_hosts import beside_bound, unlike_cluster  # noqa: E402

CLUSTERS, LIMIT = 300, 1.15


def main() -> None:
    """Measures and prints how many are near the bound, and the clusters that are not."""
    found = []
    for seed in tqdm(range(CLUSTERS), unit="cluster"):
        network = unlike_cluster(seed).network
        assert network
        found.append((beside_bound(network), seed, network))
    ratios = sorted(ratio for ratio, *_ in found)
    print(f"{sum(ratio <= LIMIT for ratio in ratios)} of {CLUSTERS} within {LIMIT}", end="; ")
    print(f"median {ratios[CLUSTERS // 2]:.3f}, mean {sum(ratios) / CLUSTERS:.3f}, worst {ratios[-1]:.3f} of the bound")
    rows = []
    for ratio, seed, network in sorted(found, key=lambda each: -each[0]):
        if ratio > LIMIT:
            hosts = [network.hosts.count(host) for host in range(len(network.host_slowness))]
            slowness = ", ".join(f"{each:.3g}" for each in network.host_slowness)
            rows.append([str(seed), str(hosts), network.nic, slowness, str([*network.racks]), f"{ratio:.3f}"])
    print(table(["seed", "ranks of hosts", "NIC per", "slowness of hosts", "racks", "time/bound"], rows))


if __name__ == "__main__":
    main()
