"""`jaxcomm bench`: jaxcomm.psum beside lax.psum, or one schedule beside another when a rank is late."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from jaxcomm.cli import output, progress, values
from jaxcomm.cli.host_devices import use_host_devices
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import bytes_text, seconds_text, table

EXAMPLE = """
    jaxcomm bench --sizes 1KiB,64KiB,1MiB,16MiB,64MiB
    jaxcomm bench --calls 16,64
    jaxcomm bench --late rank=3,ms=20 --schedules ring,straggler:14 --sizes 16MiB
"""

_NOTE = """\
Medians. Both sides donate their inputs, zeros, and take their outputs as the next ones. GB/s: bytes of one rank by
time; bus: times 2(n-1)/n. floor: one pass that reads the buffers of all ranks and stores the sum to all of them."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    sizes = values.sizes("1KiB,64KiB,1MiB,16MiB,64MiB")
    parser.add_argument("--devices", type=int, default=8, help="host devices (8)")
    parser.add_argument("--sizes", type=values.sizes, default=sizes, help="bytes a rank (1KiB,64KiB,1MiB,16MiB,64MiB)")
    parser.add_argument("--peer", choices=["lax"], default="lax", help="whom to compare with (lax)")
    parser.add_argument("--plan", help="plan that jaxcomm runs (the default schedule)")
    parser.add_argument("--calls", type=values.counts, help="instead: this many independent 1 KiB psums in one jit")
    parser.add_argument("--late", type=values.late, metavar="rank=R,ms=T", help="instead: this rank arrives late")
    parser.add_argument(
        "--schedules",
        type=lambda text: text.split(","),
        default=["ring", "straggler"],
        metavar="A,B",
        help="schedules to compare when a rank is late; straggler:K has K chunks (ring,straggler)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side, A B A B (10)")
    parser.add_argument("--out", metavar="FILE", help="also write the JSON to a file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(args: Namespace) -> int:
    """Measures and prints."""
    if args.rounds < 1:
        raise JaxcommError(f"--rounds is {args.rounds}; every side needs at least one turn")
    use_host_devices(args.devices)
    from jaxcomm.cli import bench_late, bench_psum

    plans = {name: bench_late.single(name, args.devices, args.late) for name in args.schedules} if args.late else {}
    cases = args.calls if args.calls and not args.late else args.sizes
    with progress.bar(len(cases) * args.rounds, "measuring") as bar:
        if args.late:
            rows = [bench_late.measure(plans, args.late, size, args.rounds, bar.update) for size in args.sizes]
        elif args.calls:
            rows = [bench_psum.measure(args, bench_psum.SMALL, calls, bar.update) for calls in args.calls]
        else:
            rows = [bench_psum.measure(args, size, 1, bar.update) for size in args.sizes]
    document = {"command": "jaxcomm bench", "devices": args.devices, "rounds": args.rounds, "rows": rows}
    if args.out:
        output.write_json(args.out, document)
    if args.json:
        output.print_json(document)
    else:
        print(_late_table(rows) if args.late else _psum_table(rows))
    wrong = sum(row.get("wrong", 0) for row in rows)
    if wrong:
        raise JaxcommError(f"{wrong} elements differ from lax.psum on integers, which both must sum exactly")
    return 0


def _psum_table(rows: list[dict[str, Any]]) -> str:
    header = [
        "bytes",
        "calls",
        "schedule",
        "lax",
        "jaxcomm",
        "lax/jaxcomm",
        "GB/s",
        "bus GB/s",
        "floor",
        "jaxcomm/floor",
        "wrong",
    ]
    cells = [
        [
            bytes_text(row["bytes"]),
            row["calls"],
            row["schedule"],
            seconds_text(row["lax_s"]),
            seconds_text(row["jaxcomm_s"]),
            f"{row['ratio']:.2f}",
            f"{row['gb_per_s']:.3g}",
            f"{row['bus_gb_per_s']:.3g}",
            seconds_text(row["floor_s"]),
            f"{row['over_floor']:.2f}",
            row["wrong"],
        ]
        for row in rows
    ]
    return f"{table(header, cells)}\n{_NOTE}"


def _late_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        first = row["schedules"][0]["after_arrival_s"]
        for side in row["schedules"]:
            ratio = f"{first / side['after_arrival_s']:.2f}"
            lines.append(
                [
                    bytes_text(row["bytes"]),
                    side["schedule"],
                    seconds_text(side["after_arrival_s"]),
                    ratio,
                    f"{side['early_share']:.0%}",
                    f"{side['last']} of {side['calls']}",
                ]
            )
    header = [
        "bytes",
        "schedule",
        "arrival to end",
        f"{rows[0]['schedules'][0]['schedule']}/this",
        "done before",
        "was last",
    ]
    return table(header, lines) + "\nMedians over the calls in which the late rank was the last to arrive."
