"""The metrics of a process: each metric's name, unit and labels, and its current values.

Names are those of OpenTelemetry, such as `jaxcomm.call.wait` in seconds. Prometheus has the same metrics under the
names that OpenTelemetry's rules derive, such as `jaxcomm_call_wait_seconds_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from jaxcomm.ffi.shares import UNITS
from jaxcomm.statistics import Stats

Value = tuple[Mapping[str, str], float]

_SITE: Final = ("site", "plan")
_RANK: Final = (*_SITE, "rank")
_RAIL: Final = ("process", "rail")


class Metric(NamedTuple):
    """A metric.

    Attributes:
      name: OpenTelemetry's name, such as "jaxcomm.call.wait".
      kind: "counter" for a value that only grows until `jaxcomm.reset_stats`, "gauge" for one that may also fall.
      unit: "s", "By", "1" for shares, or the counted thing in braces.
      help: one sentence.
      labels: the names of the labels.
      read: yields every set of labels with its value.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Stats], Iterator[Value]]


def site_name(site: Mapping[str, Any]) -> str:
    """The name of a call site without its plan, such as "psum.data.8x4096": operation, axes, ranks x bytes."""
    return f"{site['name']}.{site['axes']}.{site['ranks']}x{site['bytes']}"


def _of_sites(value: Callable[[Mapping[str, Any]], float | None]) -> Callable[[Stats], Iterator[Value]]:
    """Reads one value per call site. Sites without calls, and sites whose value is None, are left out."""

    def read(stats: Stats) -> Iterator[Value]:
        for site in stats:
            if (site["calls"] or site["failed"]) and (found := value(site)) is not None:
                yield {"site": site_name(site), "plan": site["plan"]}, float(found)

    return read


def _of_ranks(field: str) -> Callable[[Stats], Iterator[Value]]:
    """Reads one value per call site and rank."""

    def read(stats: Stats) -> Iterator[Value]:
        sites: list[Any] = stats
        for site in sites:
            for rank, value in enumerate(site[field]):
                yield {"site": site_name(site), "plan": site["plan"], "rank": str(rank)}, float(value)

    return read


def _of_rails(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Stats], Iterator[Value]]:
    """Reads one value per rail to another process."""

    def read(stats: Stats) -> Iterator[Value]:
        for rail in stats.rails:
            yield {"process": str(rail["process"]), "rail": rail["rail"]}, float(value(rail))

    return read


def trial_gain(site: Mapping[str, Any]) -> float | None:
    """The seconds that the plan saved per call in the site's latest trial; None without a trial."""
    trial = site.get("trial")
    return trial["default_s"] - trial["plan_s"] if trial else None


def largest_share(rail: Mapping[str, Any]) -> float:
    """The share of the largest calls' bytes that the rail carries."""
    return float(rail["shares"][-1][1]) / UNITS


def _plans(stats: Stats) -> Iterator[Value]:
    for plan in stats.plans:
        yield {"axes": ",".join(plan["axes"]), "plan": plan["plan"]}, 1.0


def _generations(stats: Stats) -> Iterator[Value]:
    yield {}, float(stats.generations[-1]["number"] if stats.generations else 0)


def _gone(stats: Stats) -> Iterator[Value]:
    yield {}, float(len(stats.gone))


METRICS: Final = (
    Metric("jaxcomm.calls", "counter", "{call}", "Calls that ended.", _SITE, _of_sites(lambda site: site["calls"])),
    Metric(
        "jaxcomm.call.failures",
        "counter",
        "{call}",
        "Calls that failed.",
        _SITE,
        _of_sites(lambda site: site["failed"]),
    ),
    Metric(
        "jaxcomm.call.size",
        "counter",
        "By",
        "Bytes that each rank contributed to calls.",
        _SITE,
        _of_sites(lambda site: site["calls"] * site["bytes"]),
    ),
    Metric(
        "jaxcomm.call.wait",
        "counter",
        "s",
        "Time that the rank waited for the last rank.",
        _RANK,
        _of_ranks("wait_s"),
    ),
    Metric(
        "jaxcomm.call.transfer",
        "counter",
        "s",
        "Time from the last arrival to the end.",
        _SITE,
        _of_sites(lambda site: site["transfer_s"]),
    ),
    Metric("jaxcomm.call.last", "counter", "{call}", "Calls in which the rank was last.", _RANK, _of_ranks("late")),
    Metric(
        "jaxcomm.call.lost",
        "counter",
        "By",
        "Bytes that the network lost and a Drop allowed.",
        _SITE,
        _of_sites(lambda site: site.get("lost_bytes", 0)),
    ),
    Metric(
        "jaxcomm.trial.gain",
        "gauge",
        "s",
        "Time that the plan saved per call in its latest trial.",
        _SITE,
        _of_sites(trial_gain),
    ),
    Metric("jaxcomm.plan.followed", "gauge", "{plan}", "1 for each plan in force.", ("axes", "plan"), _plans),
    Metric(
        "jaxcomm.rail.sent",
        "counter",
        "By",
        "Bytes that the rail carried to the process.",
        _RAIL,
        _of_rails(lambda rail: rail["bytes"]),
    ),
    Metric(
        "jaxcomm.rail.fences",
        "counter",
        "{fence}",
        "How often the rail was taken out of service.",
        _RAIL,
        _of_rails(lambda rail: rail["fences"]),
    ),
    Metric(
        "jaxcomm.rail.open",
        "gauge",
        "{rail}",
        "1 if the rail is in service, otherwise 0.",
        _RAIL,
        _of_rails(lambda rail: rail["is_open"]),
    ),
    Metric(
        "jaxcomm.rail.share",
        "gauge",
        "1",
        "The rail's share of the largest calls.",
        _RAIL,
        _of_rails(largest_share),
    ),
    Metric(
        "jaxcomm.generations",
        "counter",
        "{generation}",
        "How often the live processes connected anew.",
        (),
        _generations,
    ),
    Metric("jaxcomm.processes.gone", "gauge", "{process}", "Other processes that have left or failed.", (), _gone),
)
