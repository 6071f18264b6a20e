"""`jaxcomm simulate events`: simulates each message of every schedule, with shared links and lost packets."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from typing import Final, NamedTuple

import numpy as np

from jaxcomm import profile, schedules, simulate
from jaxcomm.cli.common import arguments, options, output, progress, simulated
from jaxcomm.cli.common.simulated import Simulated
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.profile import PacketLoss
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Delays, Forecast, Network

EXAMPLE = """
    jaxcomm simulate events --profile profile.json --plan plan.json --sizes 64MiB --packet-loss 0.1% --bound 10%
    jaxcomm simulate events --ranks 8 --sizes 1MiB --late-ms 0,20 --repeats 10
"""

_MOST_LOST: Final = 0.5
_HEADER = [
    "ranks", "bytes", "schedule", "runs", "mean", "p99", "late ranks", "ports", "latency", "shared links", "losses",
]  # fmt: skip


class Case(NamedTuple):
    """Ranks on a network. `arrivals` has one row per step. `late` is the late rank with its delays, or None."""

    ranks: int
    network: Network
    arrivals: list[list[float]]
    late: tuple[int, Delays] | None


class Row(NamedTuple):
    """The forecast of one schedule in one case."""

    ranks: int
    bytes: int
    schedule: str
    forecast: Forecast


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    simulated.add_arguments(parser)
    parser.add_argument(
        "--packet-loss", type=arguments.fraction, metavar="0.1%", help="share of the packets that are lost"
    )
    parser.add_argument(
        "--bound", type=arguments.fraction, metavar="10%", help="share of a message that may stay lost (nothing)"
    )
    parser.add_argument(
        "--repeats", type=arguments.whole(1, 10**6), default=100, metavar="N", help="most runs of each schedule (100)"
    )
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Runs every schedule in every case, and prints the forecasts."""
    if args.packet_loss is not None and args.packet_loss > _MOST_LOST:
        raise JaxcommError(
            f"--packet-loss is {100 * args.packet_loss:g}%; the models hold for links that lose at most half.\n"
            "  Cure: a smaller one."
        )
    given = simulated.read(args)
    cases = [case._replace(network=_with_packet_loss(case.network, args)) for case in _cases(given)]
    each = [
        (case, nbytes, schedule)
        for case in cases
        for nbytes in args.sizes
        for schedule in _schedules(case, nbytes, given.planned)
    ]
    total = sum(simulate.repetitions(case.network, len(case.arrivals), args.repeats) for case, _, _ in each)
    rows = []
    with progress.Bar(total, "simulating") as bar:
        for case, nbytes, (name, schedule) in each:
            found = simulate.forecast(schedule, nbytes, case.network, case.arrivals, args.repeats, bar.update)
            rows.append(Row(case.ranks, nbytes, name, found))
    if args.json:
        output.print_json(
            "simulated-events", {"rows": [row._asdict() | {"forecast": _json(row.forecast)} for row in rows]}
        )
        return 0
    print(_described(cases[0].network))
    print(table(_HEADER, [_cells(row) for row in rows]))
    print("mean, p99: from the last rank's arrival on; other columns: parts of the critical path from the first rank's")
    print("arrival on: late ranks, the ports' bytes, latency, shared links (queues, lower speed), lost packets")
    return 0


def _cases(given: Simulated) -> list[Case]:
    if measured := given.measured:
        late = profile.find_straggler(measured) if measured.arrivals else None
        known = (late.rank, Delays(late.delays)) if late and late.is_late else None
        return [Case(measured.ranks, Network.of(measured), measured.arrivals, known)]
    cases = []
    alpha, beta, topology = given.links.alpha, given.links.beta, given.links.topology
    delays = given.delays or simulated.LATE
    for n in given.ranks:
        where = topology if topology and len(topology.hosts) == n else None
        arrivals = [[delay * (rank == 0) for rank in range(n)] for delay in delays]
        known = (0, Delays(delays)) if any(delays) else None
        cases.append(Case(n, Network(alpha, beta, where), arrivals, known))
    return cases


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
        assert schedule is not None  # if no dtype is given, a plan has a schedule for every size
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
        kept = (
            "TCP retransmits all" if network.bound is None else f"up to {network.bound:.3g} of a message may stay lost"
        )
        parts.append(f"{network.packet_loss.rate:.3g} of the packets lost, {kept}")
    return "; ".join(parts)


def _cells(row: Row) -> list[object]:
    found = row.forecast
    times = [found.mean_s, found.p99_s, *found.parts]
    return [row.ranks, bytes_text(row.bytes), row.schedule, found.runs, *map(seconds_text, times)]


def _json(found: Forecast) -> dict[str, object]:
    return dataclasses.asdict(found) | {"parts": found.parts._asdict()}
