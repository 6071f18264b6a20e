"""The network of a plan whose links differ, and the schedules that were solved for this network, in words."""

from __future__ import annotations

from collections.abc import Iterator

from jaxcomm.plan.groups import Groups
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.profile.cluster import SOLVED
from jaxcomm.report.tables import bytes_text, seconds_text
from jaxcomm.simulate import clock


def network_lines(network: SolvedNetwork, grouped: Groups | None) -> Iterator[str]:
    """Yields sentences on the network's hosts, NICs, racks and solved schedules."""
    topology, ranks = network.topology, len(network.topology.hosts)
    counts = " + ".join(str(topology.hosts.count(host)) for host in sorted({*topology.hosts}))
    racks = grouped.racks if grouped else ()
    slowest = max((rack.uplink for rack in racks), default=1.0)
    if topology.nic == "host" and topology.slow == slowest and len(racks) == len({*topology.hosts}):
        yield (
            f"Racks of {counts} ranks, each with one uplink for all of its ranks; a byte between racks takes "
            f"{slowest:g} times as long as one within, to which the speed above applies. A slow uplink counts as a "
            "NIC that a host's ranks share, and carries one chunk at a time in each direction."
        )
        if any(rack.uplink != slowest for rack in racks):
            yield "The uplinks differ; schedules count all of them as the slowest, groups each as it is."
    elif len({*topology.hosts}) < ranks or not topology.is_unlike:
        yield (
            f"Hosts of {counts} ranks with a NIC per {topology.nic}; a byte between hosts takes "
            f"{topology.slow:g} times as long as one within, to which the speed above applies."
        )
    if topology.nics:
        slow = ", ".join(f"{nic:g} (rank {rank})" for rank, nic in enumerate(topology.nics) if nic > 1)
        yield (
            f"NICs are unlike: through those of some ranks a byte takes a multiple of the time: {slow}. In "
            "hierarchical schedules ranks with slower NICs sum fewer chunks, so that all are done at once."
        )
    if len(topology.uplinks) > 1:
        uplinks = ", ".join(f"{uplink:g}" for uplink in topology.uplinks)
        yield (
            f"The hosts are in {len(topology.uplinks)} racks, whose uplinks carry one message at a time in each "
            f"direction; a byte through them takes {uplinks} times as long as one between two hosts."
        )
    if ranks > SOLVED:
        yield (
            f"No schedule was searched for on this network: it has {ranks} ranks; the search is for at most {SOLVED}. "
            "The usual schedules and hierarchical ones were compared on it"
            + (
                "."
                if ranks <= clock.TIMED
                else "; a round is taken to last as long as its busiest port needs, and to end before the next begins."
            )
        )
    for index, solved in enumerate(network.schedules):
        yield (
            f"Solved schedule {index}, for late rank {solved.late} only and made for {bytes_text(solved.nbytes)} "
            f"and a delay of {seconds_text(solved.delay_s)}: {seconds_text(solved.seconds)} after its arrival, "
            f"where the schedule that the search began with takes {seconds_text(solved.start_s)}. No schedule of "
            f"{solved.chunks} chunks, each by itself, takes less than {seconds_text(solved.bound_s)} "
            f"({solved.status.lower()}, gap {solved.gap:.2%})."
        )
