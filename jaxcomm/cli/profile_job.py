"""The part of `jaxcomm profile` that all processes of a job run together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from jaxcomm import planner
from jaxcomm.cli.common import job, output, progress
from jaxcomm.measure import placement
from jaxcomm.measure.by_xla import SECONDS as XLA_SECONDS
from jaxcomm.measure.processes import SECONDS, Measured, measure_processes
from jaxcomm.measure.schedules import JOB_SIZES, schedules_of
from jaxcomm.report.tables import bytes_text, seconds_text, table


def print_dry_run(args: Namespace, ranks: int) -> None:
    """Prints what would be measured."""
    sizes, seconds, with_xla = args.sizes or list(JOB_SIZES), _seconds(args), _with_xla(args)
    lates = [late._asdict() for late in args.late]
    if args.json:
        output.print_json(
            "profile-dry-run",
            {
                "on": "processes",
                **({"executor": "all"} if with_xla else {}),
                "devices": ranks,
                "sizes": sizes,
                "seconds": seconds,
                "steps": args.steps,
                "late": lates,
            },
        )
        return
    late = "".join(f", rank {late.rank} late by {seconds_text(late.seconds)}" for late in args.late)
    print(f"Would time exchanges between {ranks} ranks, all at once and one pair at a time,")
    print("and sums on each rail alone and on all of them, where there are several;")
    print("then, between several hosts, count lost packets for 5 s;")
    print(f"then record each rank's arrival in {args.steps} steps{late};")
    also = f" and {len(schedules_of(ranks, 'xla'))} of XLA's collectives" if with_xla else ""
    print(f"then time the schedules that the links predict to be fastest{also},")
    print("with no late rank and, if a rank is late in the steps, with that late rank,")
    print(f"at {', '.join(map(bytes_text, sizes))}, from the largest down, in all for {seconds:g} s;")
    print(f"then write {args.out}.")


def measure(args: Namespace) -> Measured:
    """Measures the job in all processes. The first process shows the progress."""
    late = {each.rank: each.seconds for each in args.late}
    with_xla, seconds = _with_xla(args), _seconds(args)

    def measured(update: Callable[[float], object]) -> Measured:
        return measure_processes(
            steps=args.steps,
            schedule_sizes=args.sizes,
            candidates=planner.candidates,
            with_xla=with_xla,
            seconds=seconds,
            late=late,
            progress=update,
        )

    if not job.is_first():
        return measured(lambda share: None)
    with progress.Bar(1.0, "measuring the job's links") as bar:
        return measured(lambda share: bar.update(share - bar.n))


def _with_xla(args: Namespace) -> bool:
    return bool(args.executor == "all")


def _seconds(args: Namespace) -> float:
    return float(args.seconds or SECONDS + XLA_SECONDS * _with_xla(args))


def table_of(measured: Measured) -> str:
    """A table of exchange times: one row per kind of rank pair, with times for one pair alone and for all at once."""
    sizes = measured.transfers.sizes
    racks = [rack.ranks for rack in measured.profile.racks]
    rows = [
        [f"two {name}", *_cells(alone), *_cells(loaded)]
        for name, alone, loaded in placement.kinds(measured.transfers, racks)
    ]
    small, large = bytes_text(sizes[0]), bytes_text(sizes[-1])
    head = ["ranks", f"{small} alone", f"{large} alone", f"{small} at once", f"{large} at once"]
    return table(head, rows)


def _cells(link: placement.PairRate) -> list[str]:
    return [seconds_text(link.least_s), f"{link.bytes_per_s / 1e9:.3g} GB/s"]
