"""`jaxcomm profile`: measures this machine's host devices, GPUs or TPUs, or a job's processes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import files
from jaxcomm.cli import profile_job, profile_xla
from jaxcomm.cli.common import arguments, job, options, output, profiles, progress, step_sizes
from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.errors import JaxcommError
from jaxcomm.measure.by_xla import SECONDS as XLA_SECONDS
from jaxcomm.measure.devices import CALLS_PER_SIZE, LOOPS, measure_devices
from jaxcomm.measure.processes import SECONDS
from jaxcomm.measure.psum_loop import check_arguments
from jaxcomm.measure.schedules import SECONDS as SCHEDULE_SECONDS
from jaxcomm.measure.schedules import SIZES, schedules_of
from jaxcomm.report.tables import bytes_text, seconds_text

EXAMPLE = """
    jaxcomm profile --devices 8 --out profile.json
    jaxcomm profile --devices 8 --late rank=3,ms=10 --dry-run
    jaxcomm profile --on cuda --devices 8              # GPUs: by XLA's collectives, or our kernel once it is certified
    jaxcomm launch -n 4 -- jaxcomm profile --out profile.json    # the links between the processes of a job
    jaxcomm profile import run.json --out profile.json     # a run that called jaxcomm.stats().save("run.json")
    jaxcomm profile import training.log --out profile.json     # another tool's measurements
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    low, high = bytes_text(min(SIZES)), bytes_text(max(SIZES))
    parser.add_argument("--devices", type=int, help="host devices or GPUs, at least 2 (8); in a job, all are measured")
    parser.add_argument("--on", choices=["cpu", "cuda", "tpu"], default="cpu", help="host devices (cpu), GPUs or TPUs")
    parser.add_argument(
        "--executor",
        choices=["core", "xla", "all"],
        help="time jaxcomm's executor (core), XLA's own collectives (xla), or both, between CPU processes (all): a "
        "plan chooses between them. Without it: core on CPUs; elsewhere the executor that runs plans there",
    )
    parser.add_argument(
        "--sizes",
        type=step_sizes.sizes,
        metavar="A,B..C|FILE",
        help="bytes per rank to time schedules at, B..C in steps of 4x; or a file: the sums of a saved run, or of a "
        f"profile's gradient buckets ({low} to {high}, from the largest down until the time is up)",
    )
    parser.add_argument(
        "--seconds",
        type=arguments.seconds,
        metavar="S",
        help=f"rough time for the schedules ({SCHEDULE_SECONDS:g}; XLA's {XLA_SECONDS:g}); in a job, for transfers and "
        f"schedules ({SECONDS:g}; with both executors {SECONDS + XLA_SECONDS:g})",
    )
    parser.add_argument("--steps", type=int, default=50, help="steps whose arrivals are recorded (50)")
    options.late_ranks(parser, "make a rank late on purpose")
    parser.add_argument("--out", default="profile.json", help="the profile to write (profile.json)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured, measure nothing")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Measures, writes the profile, and prints the summary."""
    if profile_xla.is_wanted(args):
        return profile_xla.run(args)
    if is_job():
        return _of_a_job(args)
    if args.executor == "all":
        raise JaxcommError(
            "--executor all is for the CPU processes of a job.\n  Cure: jaxcomm launch -n 4 -- jaxcomm profile"
            " --executor all, or leave it out."
        )
    if args.seconds is not None and args.on == "cuda":
        raise JaxcommError("--seconds is for the schedules that are timed on CPUs.\n  Cure: leave it out.")
    seconds = args.seconds or SCHEDULE_SECONDS
    are_asked = args.sizes is not None
    args.devices, args.sizes = 8 if args.devices is None else args.devices, args.sizes or list(SIZES)
    late = {each.rank: each.seconds for each in args.late}
    check_arguments(args.devices, args.sizes, args.steps, late)
    if args.dry_run and args.json:
        lates = [each._asdict() for each in args.late]
        wanted = {
            "on": args.on,
            "devices": args.devices,
            "sizes": args.sizes,
            "seconds": seconds if args.on == "cpu" else None,
        }
        wanted |= {"steps": args.steps, "late": lates}
        output.print_json("profile-dry-run", wanted)
        return 0
    if args.dry_run:
        made_late = "".join(f", rank {rank} late by {seconds_text(seconds)}" for rank, seconds in late.items())
        sizes = ", ".join(map(bytes_text, args.sizes))
        if args.on == "cpu":
            count = len(schedules_of(args.devices))
            print(f"Would time {count} schedules between {args.devices} host devices, with no late rank and with one,")
            print(f"at each of {sizes}, as far as {seconds:g} s suffice;")
        else:
            print(f"Would time {CALLS_PER_SIZE} psums between {args.devices} GPUs, and {LOOPS * CALLS_PER_SIZE} beside")
            print(f"the same number of NCCL's, at each of {sizes};")
        print(f"then record each rank's arrival in {args.steps} steps{made_late}; then write {args.out}.")
        return 0
    files.check_writable(args.out)
    if args.on == "cpu":
        use_host_devices(args.devices)
    with progress.Bar(1.0, f"measuring {len(args.sizes)} sizes and {args.steps} steps") as bar:
        found = measure_devices(
            args.devices,
            args.sizes,
            args.steps,
            late=late,
            on=args.on,
            are_asked=are_asked,
            seconds=seconds,
            progress=lambda share: bar.update(share - bar.n),
        )
    profiles.finish(found, args.out, args)
    return 0


def _of_a_job(args: Namespace) -> int:
    """Measures in all processes. The first process writes the profile and prints the summary."""
    if args.devices is not None or args.on != "cpu":
        raise JaxcommError(
            "all CPU devices of this job's processes are measured.\n  Cure: leave out --devices and --on."
        )
    devices = job.use_devices(2)
    if args.dry_run:
        if job.is_first():
            profile_job.print_dry_run(args, devices)
        return 0
    if job.is_first():
        files.check_writable(args.out)
    measured = profile_job.measure(args)
    if job.is_first():
        if not args.json:
            print(f"{profile_job.table_of(measured)}\n")
        profiles.finish(measured.profile, args.out, args)
    return 0
