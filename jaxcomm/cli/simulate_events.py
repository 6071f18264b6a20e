"""The runs of `jaxcomm simulate --events`: every schedule message by message on the profile's network."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from typing import NamedTuple

import numpy as np

from jaxcomm import profile, schedules, simulate
from jaxcomm.cli.common import output, progress
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.planner.schedules import choose_executor
from jaxcomm.profile import PacketLoss
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Delays, Forecast, Network

_HEADER = [
    "ranks", "bytes", "schedule", "runs", "mean", "p99", "late ranks", "ports", "latency", "shared links", "losses",
]  # fmt: skip


class Case(NamedTuple):
    """Ranks on a network, and when they arrive, one row per step; `late` is the straggler and its delays, if known."""

    ranks: int
    network: Network
    arrivals: list[list[float]]
    late: tuple[int, Delays] | None


class Row(NamedTuple):
    """What one schedule does in one case."""

    ranks: int
    nbytes: int
    schedule: str
    forecast: Forecast


def run(args: Namespace, alpha: float, beta: float, ranks: list[int], delays: list[float], planned: Plan | None) -> int:
    """Runs, prints.

    Args:
      args: the command's options.
      alpha: seconds per message, where there is no profile.
      beta: seconds per byte, likewise.
      ranks: numbers of ranks, likewise.
      delays: how late rank 0 is, one step each, likewise.
      planned: a plan to run as well, for its number of ranks.
    """
    cases = _cases(args, alpha, beta, ranks, delays, planned)
    each = [
        (case, nbytes, schedule)
        for case in cases
        for nbytes in args.sizes
        for schedule in _schedules(case, nbytes, planned)
    ]
    total = sum(simulate.repetitions(case.network, len(case.arrivals), args.repeat) for case, _, _ in each)
    rows = []
    with progress.Bar(total, "simulating") as bar:
        for case, nbytes, (name, schedule) in each:
            found = simulate.forecast(schedule, nbytes, case.network, case.arrivals, args.repeat, bar.update)
            rows.append(Row(case.ranks, nbytes, name, found))
    if args.json:
        shown = [row._asdict() | {"forecast": _json(row.forecast)} for row in rows]
        output.print_json({"rows": shown})
        return 0
    print(_described(cases[0].network))
    print(table(_HEADER, [_cells(row) for row in rows]))
    print("mean, p99: from the last rank's arrival on; then where the time went from the first one's on, on the")
    print("critical path: late ranks, the ports' bytes, latency, shared links (queues, lower speed), lost packets")
    return 0


def _cases(
    args: Namespace, alpha: float, beta: float, ranks: list[int], delays: list[float], planned: Plan | None
) -> list[Case]:
    if args.profile:
        measured, _ = choose_executor(profile.load(args.profile))
        networks = [Network.of(measured)]
        late = profile.find_straggler(measured) if measured.arrivals else None
        known = (late.rank, Delays(late.delays)) if late and late.is_late else None
        cases = [Case(measured.ranks, networks[0], measured.arrivals, known)]
    else:
        cases = []
        for n in ranks:
            topology = planned.network.topology if planned and planned.network and planned.ranks == n else None
            arrivals = [[delay * (rank == 0) for rank in range(n)] for delay in delays]
            known = (0, Delays(delays)) if any(delays) else None
            cases.append(Case(n, Network(alpha, beta, topology), arrivals, known))
    return [case._replace(network=_with_packet_loss(case.network, args)) for case in cases]


def _with_packet_loss(network: Network, args: Namespace) -> Network:
    loss = network.packet_loss
    if args.packet_loss is not None:
        loss = loss.model_copy(update={"rate": args.packet_loss}) if loss else PacketLoss(rate=args.packet_loss)
    if args.bound is not None and loss is None:
        raise JaxcommError(
            f"--bound is {args.bound:g}, but no packet is ever lost.\n"
            "  Cure: --packet-loss 0.1%, or a profile whose packet loss was measured"
        )
    return dataclasses.replace(network, packet_loss=loss, bound=args.bound)


def _schedules(case: Case, nbytes: int, planned: Plan | None) -> list[tuple[str, Schedule]]:
    n, network = case.ranks, case.network
    found = [
        ("ring", schedules.ring(n)),
        ("halving/doubling", schedules.halving_doubling(n)),
        ("direct", schedules.direct(n)),
    ]
    if case.late:
        rank, delays = case.late
        best = simulate.best(n, nbytes, delays, network.alpha, network.beta)
        found.append(("straggler", schedules.hybrid(n, rank, best.chunks, best.covered)))
    if planned and planned.ranks == n:
        schedule = planned.schedule_for(nbytes)
        assert schedule is not None  # without a dtype a plan has a schedule for every size
        instead = ", not NCCL" if planned.nccl_seconds(nbytes) is not None else ""
        found.append((f"plan: {schedule.kind}{instead}", schedule))
    return found


def _described(network: Network) -> str:
    parts = [f"{seconds_text(network.alpha)} a message, {1e-9 / network.beta:.3g} GB/s a port"]
    if network.topology:
        hosts = len({*network.topology.hosts})
        parts.append(
            f"{hosts} hosts, {network.topology.slow:g} times slower between them, a NIC per {network.topology.nic}"
        )
    if network.racks:
        slowest = max(network.uplinks)
        parts.append(f"{len(network.uplinks)} racks, each with one shared uplink, up to {slowest:g} times slower")
    if network.nics:
        parts.append(f"{np.count_nonzero(np.array(network.nics) > 1)} slow NICs")
    if network.packet_loss:
        kept = "TCP repairs all" if network.bound is None else f"up to {network.bound:.3g} of a message may stay lost"
        parts.append(f"{network.packet_loss.rate:.3g} of the packets lost, {kept}")
    return "; ".join(parts)


def _cells(row: Row) -> list[object]:
    found = row.forecast
    times = [found.mean_s, found.p99_s, *found.parts]
    return [row.ranks, bytes_text(row.nbytes), row.schedule, found.runs, *map(seconds_text, times)]


def _json(found: Forecast) -> dict[str, object]:
    return dataclasses.asdict(found) | {"parts": found.parts._asdict()}
