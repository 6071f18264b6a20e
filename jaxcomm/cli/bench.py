"""`jaxcomm bench`: compares jaxcomm's collectives with lax's or MPI's, or schedules with each other if a rank is late.

In a job, every process runs this command, and the first process prints.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from jaxcomm import files, plan
from jaxcomm.cli.common import arguments, job, options, output, progress
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import bytes_text, seconds_text, table

EXAMPLE = """
    jaxcomm bench --sizes 1KiB,64KiB,1MiB,16MiB,64MiB
    jaxcomm bench --calls 16,64
    jaxcomm bench --late rank=3,ms=20 --schedules ring,straggler:14 --sizes 16MiB
    jaxcomm launch -n 4 -- jaxcomm bench --sizes 1KiB,1MiB,16MiB
    mpirun -n 4 jaxcomm bench --peer mpi --sizes 1KiB,1MiB,16MiB
    jaxcomm bench --collective all_gather --sizes 1MiB
"""

_NOTE = """\
Medians. Both sides donate their inputs (zeros) and take their outputs as next inputs. GB/s: bytes of one rank per
time; bus: times 2(n-1)/n. floor: one pass that reads the buffers of all ranks and stores the sum to all of them."""
_HALF_NOTE = """\
Medians. Both sides keep their inputs (zeros) and donate their last outputs. Bytes: the whole buffer, which is
psum_scatter's operand and all_gather's result. GB/s: these bytes per time; bus: times (n-1)/n."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--devices", type=int, default=8, help="host devices, in one process (8)")
    options.sizes(parser, "1KiB,64KiB,1MiB,16MiB,64MiB", "bytes per rank")
    options.collective(parser, "psum, psum_scatter or all_gather; bytes are of the whole buffer")
    parser.add_argument(
        "--peer",
        choices=["lax", "mpi", "mpi4py"],
        default="lax",
        help="library to compare with: jax.lax (Gloo between processes); or, in a job that mpirun started, MPI: in a "
        "jitted step by mpi4jax (mpi), or on host buffers without JAX (mpi4py) (lax)",
    )
    parser.add_argument("--plan", help="plan that jaxcomm runs (the default schedule); with --late, beside --schedules")
    parser.add_argument("--calls", type=arguments.counts, help="instead of --sizes: numbers of 1 KiB psums in one jit")
    options.late(parser, None, "instead: compare --schedules while this rank is late")
    parser.add_argument(
        "--schedules",
        type=arguments.words,
        default=["ring", "straggler"],
        metavar="A,B",
        help="schedules to compare when a rank is late; straggler:K has K chunks (ring,straggler)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side, A B A B (10)")
    parser.add_argument("--out", metavar="FILE", help="also write the JSON to a file")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Measures all cases, and prints a table in the first process."""
    if args.rounds < 1:
        raise JaxcommError(f"--rounds is {args.rounds}; every side needs at least one turn.\n  Cure: leave it out.")
    if args.late and args.collective != "all_reduce":
        raise JaxcommError(
            f"--late is for all_reduce; a late rank gains nothing in {args.collective}.\n  Cure: leave out one of them."
        )
    if args.late and args.peer != "lax":
        raise JaxcommError("--late compares jaxcomm's schedules with each other.\n  Cure: leave out --peer.")
    files.check_writable(args.out)
    devices = job.use_devices(args.devices)
    from jaxcomm.cli import bench_late, bench_psum
    from jaxcomm.collectives import active_plan

    active_plan.set_trial(False)  # with trials, some calls would run the default schedule
    loaded = plan.load(args.plan, ranks=devices) if args.plan else None
    if loaded and is_job():
        from jaxcomm import init

        init(plan=loaded)  # uses the plan's rails, and its transport between hosts
    plans = {name: bench_late.single(name, devices, args.late) for name in args.schedules} if args.late else {}
    if loaded and args.late:
        plans["plan"] = loaded
    many = args.calls and not args.late
    cases = [(bench_psum.SMALL, calls) for calls in args.calls] if many else [(size, 1) for size in args.sizes]
    with progress.Bar(len(cases) * args.rounds, "measuring") as bar:
        rows = [
            bench_late.measure(plans, args.late, size, args.rounds, bar.update)
            if args.late
            else bench_psum.measure(args.peer, args.collective, devices, loaded, size, calls, args.rounds, bar.update)
            for size, calls in cases
        ]
    wrong = sum(row.get("wrong", 0) for row in rows)
    if not job.is_first():
        return 1 if wrong else 0
    document = {
        "peer": args.peer,
        "collective": args.collective,
        "devices": devices,
        "rounds": args.rounds,
        "rows": rows,
    }
    if args.out:
        output.write_json(args.out, "bench", document)
    if args.json:
        output.print_json("bench", document)
    else:
        print(_late_table(rows) if args.late else _psum_table(rows, args.peer, args.collective == "all_reduce"))
    if wrong:
        raise JaxcommError(f"{wrong} elements differ from {args.peer}'s on integers, which both must sum exactly")
    return 0


def _psum_table(rows: list[dict[str, Any]], peer: str, whole: bool) -> str:
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "bytes": lambda row: bytes_text(row["bytes"]),
        "calls": lambda row: row["calls"],
        "schedule": lambda row: row["schedule"],
        peer: lambda row: seconds_text(row["peer_s"]),
        "jaxcomm": lambda row: seconds_text(row["jaxcomm_s"]),
        f"{peer}/jaxcomm": lambda row: f"{row['ratio']:.2f}",
        "GB/s": lambda row: f"{row['gb_per_s']:.3g}",
        "bus GB/s": lambda row: f"{row['bus_gb_per_s']:.3g}",
        "floor": lambda row: seconds_text(row["floor_s"]),
        "jaxcomm/floor": lambda row: f"{row['over_floor']:.3g}",
        "wrong": lambda row: row["wrong"],
    }
    if not whole:
        del columns["floor"], columns["jaxcomm/floor"]
    note = _NOTE if whole else _HALF_NOTE
    return f"{table([*columns], [[cell(row) for cell in columns.values()] for row in rows])}\n{note}"


def _late_table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]["schedules"][0]["schedule"]
    cells = [
        [
            bytes_text(row["bytes"]),
            side["schedule"],
            seconds_text(side["after_arrival_s"]),
            f"{row['schedules'][0]['after_arrival_s'] / side['after_arrival_s']:.2f}",
            f"{side['early_share']:.0%}",
            f"{side['last']} of {side['calls']}",
        ]
        for row in rows
        for side in row["schedules"]
    ]
    header = ["bytes", "schedule", "arrival to end", f"{first}/this", "done before", "was last"]
    return f"{table(header, cells)}\nMedians over the calls in which the late rank was the last to arrive."
