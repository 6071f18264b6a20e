"""A profile in a short table: the link, who is late, and what is summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jaxcomm import profile
from jaxcomm.profile import Profile
from jaxcomm.profile.run_statistics import TOOL as RUN_TOOL
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import fit_text, nobody_late_text

_SHOWN = 8  # hosts or NICs


def summary(measured: Profile) -> str:
    """One row per fact.

    Args:
      measured: a profile.

    Returns:
      Lines without a trailing newline.
    """
    return table(["profile", "value"], [*_rows(measured)])


def _missing(measured: Profile) -> list[str]:
    """The facts that a run's record does not show and no other profile has added."""
    known = {
        "hosts": measured.hosts or measured.topology,
        "rails": measured.rail_shares or measured.rails,
        "NICs": measured.nics or measured.incast is not None,
        "incast": measured.incast is not None,
        "times of other schedules": measured.timed_schedules,
    }
    return [name for name, value in known.items() if not value]


def _rows(measured: Profile) -> Iterator[tuple[str, str]]:
    link = measured.link
    yield "ranks", str(measured.ranks)
    yield "α, a round", seconds_text(link.alpha_s) + ", assumed" * link.alpha_assumed
    rate = f"{1e-9 / link.beta_s_per_byte:.3g} GB/s" if link.beta_s_per_byte else "0 s a byte"
    yield "β, a rank", rate + ", if α is as assumed" * link.alpha_assumed
    yield "fit", fit_text(len(link.samples), link.residual, link.alpha_assumed)
    for name, timed in measured.executors.items():
        least, most = (end(sample.bytes for sample in timed.samples) for end in (min, max))
        executor = "NCCL's own allreduce" if name == "nccl" else f"{name} executor"
        yield executor, f"{len(timed.samples)} timed calls, {bytes_text(least)} to {bytes_text(most)}"
    if measured.hosts:
        yield "hosts", _counted(measured.hosts)
    for rack in measured.racks:
        names = [measured.hosts[rank] for rank in rack.ranks] if measured.hosts else []
        slow = f", uplink {rack.uplink:g} × slower" if rack.uplink > 1 else ""
        yield rack.name, f"{_counted(names) if names else f'{len(rack.ranks)} ranks'}{slow}"
    if topology := measured.topology:
        hosts, racks = len({*topology.hosts}), len(topology.uplinks)
        where = f"{hosts} host{'s' * (hosts != 1)}" + (f" in {racks} rack{'s' * (racks != 1)}" if racks else "")
        yield "topology", f"{where}, a NIC per {topology.nic}, links between {topology.slow:g} × slower"
    if nics := [f"rank {rank} {nic:.3g} × slower" for rank, nic in enumerate(measured.nics) if nic > 1]:
        more = f" and {len(nics) - _SHOWN} more" if len(nics) > _SHOWN else ""
        yield "NICs", ", ".join(nics[:_SHOWN]) + more
    elif measured.incast is not None:  # a job measured its links, NICs among them
        yield "NICs", "alike: differences below a quarter count as none"
    if schedules := measured.timed_schedules:
        sizes = [sample.bytes for sample in schedules.schedules[0].samples]
        ends = f"{bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
        yield "schedules", f"{len(schedules.schedules)} timed at {len(sizes)} size{'s' * (len(sizes) != 1)}, {ends}"
    if measured.provenance.tool == RUN_TOOL and (missing := _missing(measured)):
        yield "not recorded", f"{', '.join(missing)}: `jaxcomm profile` in a job of the same processes measures them"
    if measured.incast:
        yield ("incast", f"a byte takes {measured.incast - 1:.1%} longer where a host exchanges with several others")
    if measured.packet_loss:
        yield "lost packets", f"{measured.packet_loss.rate:.2%}, on the worst way between hosts"
    late = profile.find_straggler(measured) if measured.arrivals else None
    where = f" on {measured.hosts[late.rank]}" if late and measured.hosts else ""
    if late and not late.is_late:
        yield "straggler", nobody_late_text(f"rank {late.rank}{where}", late, measured.ranks)
    elif late:
        yield (
            "straggler",
            f"rank {late.rank}{where}, last in {late.late_steps} of {late.steps} steps ({late.share:.0%})",
        )
        yield (
            "its delay",
            f"median {seconds_text(late.median_s)}, mean {seconds_text(late.mean_s)}, "
            f"greatest {seconds_text(late.max_s)}",
        )
        yield (
            "its drift",
            f"first quarter {seconds_text(late.first_quarter_s)}, last quarter {seconds_text(late.last_quarter_s)}",
        )
    else:
        yield "straggler", "unknown: no arrivals in this profile"
    if measured.collective:
        yield "a collective", f"{bytes_text(measured.collective.bytes)} in {seconds_text(measured.collective.seconds)}"
    if measured.buckets:
        total = sum(bucket.bytes for bucket in measured.buckets)
        yield "buckets", f"{len(measured.buckets)}, {bytes_text(total)} together"
    yield "source", measured.provenance.source


def _counted(hosts: Sequence[str]) -> str:
    """The names of hosts, with their ranks where they have several."""
    counts = Counter(hosts)
    shown = [f"{name} ({count} ranks)" if count > 1 else name for name, count in counts.items()]
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + rest
