"""A profile in a short table: ranks, links, timed schedules, the late rank and gradient buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jaxcomm import profile
from jaxcomm.profile import Profile, Rail
from jaxcomm.profile.run_statistics import TOOL as RUN_TOOL
from jaxcomm.report.plan.rails import rail_name
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import fit_text, nobody_late_text

_SHOWN = 8  # maximum number of hosts, or of NICs, that a row lists
MUCH = 0.1  # the summary mentions other programs if they used at least this share of the CPU time


def summary(measured: Profile) -> str:
    """One row per fact.

    Args:
      measured: a profile.

    Returns:
      Lines without a trailing newline.
    """
    return table(["profile", "value"], [*_rows(measured)])


def _missing(measured: Profile) -> list[str]:
    """Names the facts that the profile lacks because neither the run's record nor another profile has them."""
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
    elif measured.incast is not None:  # a job that measures incast also measures its NICs
        yield "NICs", "alike: differences below a quarter count as none"
    for rail in measured.rails:
        yield f"rail {rail.name}" if rail.name else rail_name(rail.name), _rail_text(rail)
    if schedules := measured.timed_schedules:
        sizes = schedules.sizes
        ends = f"{bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
        yield "schedules", f"{len(schedules.schedules)} timed at {len(sizes)} size{'s' * (len(sizes) != 1)}, {ends}"
        if schedules.left_out:
            few = (f"{each.timed} of {each.offered} at {bytes_text(each.bytes)}" for each in schedules.left_out)
            yield "not all timed", f"{', '.join(few)}; all take about {seconds_text(schedules.seconds_for_all)}"
        if schedules.others >= MUCH:
            yield (
                "other programs",
                f"took {schedules.others:.0%} of the processors while schedules were timed: times are longer than on "
                "an idle machine, especially those of small calls",
            )
    if measured.provenance.tool == RUN_TOOL and (missing := _missing(measured)):
        yield "not recorded", f"{', '.join(missing)}: `jaxcomm profile` in a job of the same processes measures them"
    if measured.incast:
        yield ("incast", f"a byte takes {measured.incast - 1:.1%} longer where a host exchanges with several others")
    if measured.packet_loss:
        yield "lost packets", f"{measured.packet_loss.rate:.2%}, on the worst path between hosts"
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


def _rail_text(rail: Rail) -> str:
    least, most = rail.latency[0], rail.latency[-1]
    words = [f"{bytes_text(each.bytes)} in {seconds_text(each.seconds)}" for each in (least, most)]
    words += [f"{rail.slowdown - 1:.0%} slower beside others"] if rail.slowdown > 1 else []
    if rail.processor_s_per_byte:
        words.append(f"{rail.processor_s_per_byte * 1e9:.2g} s of a processor per GB")
    return f"{rail.transport}, {', '.join(words)}"


def _counted(hosts: Sequence[str]) -> str:
    """The names of the hosts, with the number of ranks in brackets if a host has several."""
    counts = Counter(hosts)
    shown = [f"{name} ({count} ranks)" if count > 1 else name for name, count in counts.items()]
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + rest
