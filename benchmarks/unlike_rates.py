"""Compares schedules on links of different rates with the least time of any all-reduce, by runs without latency.

    python benchmarks/unlike_rates.py
    python benchmarks/unlike_rates.py late

The 300 clusters are those of `tests.planner.random_hosts.unlike_cluster`, with 16 chunks per rank. With `late` the 150
clusters are those of `unlike_with_a_late_rank`: each host has one rank, and one rank is late. There the planner chooses
the schedule, and the bound is for the time from the late rank's arrival on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jaxcomm.report.tables import table  # noqa: E402
from tests.planner.random_hosts import beside_bound, unlike_cluster, unlike_with_a_late_rank  # noqa: E402

CLUSTERS, LATE, LIMIT = 300, 150, 1.15


def late_ranks() -> None:
    """Measures and prints the same for clusters with a late rank."""
    found = []
    for seed in tqdm(range(LATE), unit="cluster"):
        cluster = unlike_with_a_late_rank(seed)
        found.append((cluster.beside_bound(), seed, cluster))
    print_summary([ratio for ratio, *_ in found])
    rows = [
        [str(seed), slowness_text(each.topology.nics), str(each.late), f"{each.delay:.3g}", f"{ratio:.3f}"]
        for ratio, seed, each in sorted(found, key=lambda each: -each[0])
        if ratio > LIMIT
    ]
    print(table(["seed", "slowness", "late rank", "by buffers' time", "time/bound"], rows))


def print_summary(found: Sequence[float]) -> None:
    """The number of clusters near the bound."""
    ratios = sorted(found)
    print(f"{sum(ratio <= LIMIT for ratio in ratios)} of {len(ratios)} within {LIMIT}", end="; ")
    mean, median = sum(ratios) / len(ratios), ratios[len(ratios) // 2]
    print(f"median {median:.3f}, mean {mean:.3f}, worst {ratios[-1]:.3f} of the bound")


def slowness_text(slowness: Sequence[float]) -> str:
    return ", ".join(f"{each:.3g}" for each in slowness)


def main() -> None:
    """Measures and prints how many are near the bound, and the clusters that are not."""
    if sys.argv[1:] == ["late"]:
        late_ranks()
        return
    found = []
    for seed in tqdm(range(CLUSTERS), unit="cluster"):
        network = unlike_cluster(seed).network
        assert network
        found.append((beside_bound(network), seed, network))
    print_summary([ratio for ratio, *_ in found])
    rows = []
    for ratio, seed, network in sorted(found, key=lambda each: -each[0]):
        if ratio > LIMIT:
            hosts = [network.hosts.count(host) for host in range(len(network.host_slowness))]
            slowness = slowness_text(network.host_slowness)
            rows.append([str(seed), str(hosts), network.nic, slowness, str([*network.racks]), f"{ratio:.3f}"])
    print(table(["seed", "ranks of hosts", "NIC per", "slowness of hosts", "racks", "time/bound"], rows))


if __name__ == "__main__":
    main()
