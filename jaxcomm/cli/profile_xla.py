"""The part of `jaxcomm profile` that measures all-reduces by XLA's own collectives, on any platform."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from jaxcomm import files
from jaxcomm.cli.common import job, output, profiles, progress
from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.errors import JaxcommError
from jaxcomm.measure.by_xla import SECONDS, measure_by_xla
from jaxcomm.measure.psum_loop import check_arguments
from jaxcomm.measure.schedules import JOB_SIZES, schedules_of
from jaxcomm.profile import Profile
from jaxcomm.report.tables import bytes_text, seconds_text

_PLACES = {"cpu": "host devices", "cuda": "GPUs", "tpu": "TPUs"}


def is_wanted(args: Namespace) -> bool:
    """Whether to measure XLA's collectives: if the options ask for them, or by default if jaxcomm has no executor here.

    Raises:
      JaxcommError: the options ask for the core on TPUs, where the core does not run.
    """
    if args.executor or args.on == "cpu":
        if args.executor == "core" and args.on == "tpu":
            raise JaxcommError("jaxcomm's core does not run on TPUs.\n  Cure: --executor xla, or leave it out.")
        return bool(args.executor == "xla")
    if args.on == "tpu" or is_job():
        return True
    from jaxcomm.gpu import certificate, core

    return core.why_off() is not None or certificate.why_not("process") is not None


def run(args: Namespace) -> int:
    """Measures in all processes. The first process writes the profile and prints the summary."""
    sizes, seconds = args.sizes or list(JOB_SIZES), args.seconds or SECONDS
    if is_job():
        if args.devices is not None:
            raise JaxcommError("all devices of this job's processes are measured.\n  Cure: leave out --devices.")
        import jax

        jax.distributed.initialize()
    elif args.on == "cpu" and not args.dry_run:
        use_host_devices(8 if args.devices is None else args.devices)
    if args.dry_run:
        if not is_job() or job.is_first():
            _print_dry_run(args, sizes, seconds)
        return 0
    is_first = job.is_first()
    if is_first:
        files.check_writable(args.out)

    def measured(update: Callable[[float], object]) -> Profile:
        late = {each.rank: each.seconds for each in args.late}
        options = {
            "late": late,
            "on": args.on,
            "are_asked": args.sizes is not None,
            "seconds": seconds,
            "progress": update,
        }
        count = 8 if args.devices is None and args.on == "cpu" and not is_job() else args.devices
        return measure_by_xla(count, sizes, args.steps, **options)

    if not is_first:
        measured(lambda share: None)
        return 0
    with progress.Bar(1.0, f"measuring {len(sizes)} sizes and {args.steps} steps") as bar:
        found = measured(lambda share: bar.update(share - bar.n))
    profiles.finish(found, args.out, args)
    return 0


def _print_dry_run(args: Namespace, sizes: list[int], seconds: float) -> None:
    if is_job():
        import jax

        ranks = len(jax.devices(args.on))
    else:
        ranks = 8 if args.devices is None else args.devices
    check_arguments(ranks, sizes, args.steps, {each.rank: each.seconds for each in args.late})
    if args.json:
        lates = [each._asdict() for each in args.late]
        wanted = {"on": args.on, "executor": "xla", "devices": ranks, "sizes": sizes, "seconds": seconds}
        output.print_json("profile-dry-run", {**wanted, "steps": args.steps, "late": lates})
        return
    late = "".join(f", rank {each.rank} late by {seconds_text(each.seconds)}" for each in args.late)
    print(f"Would time {len(schedules_of(ranks, 'xla'))} schedules of XLA's collectives between {ranks}", end=" ")
    print(f"{_PLACES[args.on]}, with no late rank and with one,")
    print(f"at each of {', '.join(map(bytes_text, sizes))}, as far as {seconds:g} s suffice;")
    print(f"then record each rank's arrival in {args.steps} steps{late}; then write {args.out}.")
