"""`jaxcomm launch`: starts the processes of a job on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from jaxcomm import environment
from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli.common import arguments, output
from jaxcomm.distributed.connect.settings import TRANSPORTS
from jaxcomm.distributed.launch import commands as launch
from jaxcomm.distributed.launch import supervise
from jaxcomm.distributed.launch.coordinator import Coordinator, coordinator_command
from jaxcomm.distributed.launch.processors import shares
from jaxcomm.distributed.launch.supervise import End, Reaction
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import load

EXAMPLE = """
    jaxcomm launch -n 4 train.py --steps 100
    jaxcomm launch -n 2 --devices-per-process 4 --transport tcp train.py
    jaxcomm launch -n 2 -m mine.text
    jaxcomm launch -n 4 --keep-going train.py
    jaxcomm launch -n 4 --restart 10 train.py
    jaxcomm launch -n 6 --join 10.0.0.1:1234 --numbers 4..5 train.py
    jaxcomm launch -n 4 --every-collective train.py
    jaxcomm launch -n 4 --every-collective --plan auto train.py
    jaxcomm launch -n 4 --dry-run train.py
"""

_MOST_PROCESSES = 1024
_MOST_DEVICES = 1024
_MOST_RESTARTS = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "-n", "--processes", type=arguments.whole(1, _MOST_PROCESSES), required=True, metavar="N", help="processes"
    )
    parser.add_argument(
        "--devices-per-process",
        type=arguments.whole(1, _MOST_DEVICES),
        default=1,
        metavar="N",
        help="CPU devices of each process, or GPUs (1)",
    )
    parser.add_argument("--transport", choices=TRANSPORTS, help="sets JAXCOMM_TRANSPORT")
    parser.add_argument("-m", dest="is_module", action="store_true", help="COMMAND is a Python module")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="when a process other than the first fails, the others go on; sets JAX_ENABLE_RECOVERABILITY",
    )
    parser.add_argument(
        "--restart",
        type=arguments.whole(0, _MOST_RESTARTS),
        default=0,
        metavar="N",
        help="start again each process that fails or is killed, N times in all; the others go on (0). The program "
        "must use live_devices",
    )
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="join the job whose coordination service runs there; see the guide to processes that are replaced",
    )
    parser.add_argument(
        "--numbers",
        type=arguments.numbers,
        metavar="A..B",
        help="with --join: the numbers of the processes to start here, of all that the job may have (all)",
    )
    parser.add_argument(
        "--every-collective",
        action="store_true",
        help="jaxcomm carries all collectives between the processes; the program stays unchanged",
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="with --every-collective: the plan that all-reduces follow; auto: the run makes its own plans",
    )
    parser.add_argument(
        "--no-bind",
        action="store_true",
        help="let each process run on all processors; otherwise each gets an equal share, if they divide evenly",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would run, and with which variables")
    parser.add_argument("--json", action="store_true", help="with --dry-run: print it for machines")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="script.py, or a program, and its arguments; scripts call jax.distributed.initialize() without arguments",
    )


def run(args: Namespace) -> int:
    """Runs the processes. Returns the exit status of the first failure that ends the job, or 0."""
    words = args.command[args.command[:1] == ["--"] :]
    if not words:
        raise JaxcommError("there is nothing to run.\n  Cure: jaxcomm launch -n 4 script.py")
    if args.plan and not args.every_collective:
        raise JaxcommError(
            "--plan goes with --every-collective; a program selects its own plan by jaxcomm.use_plan.\n"
            "  Cure: add --every-collective, or leave out --plan."
        )
    if args.numbers and not args.join:
        raise JaxcommError("--numbers goes with --join only.\n  Cure: leave out --numbers.")
    numbers = sorted({*(args.numbers or range(args.processes))})
    if numbers[-1] >= args.processes:
        raise JaxcommError(f"--numbers has {numbers[-1]}, but -n is {args.processes}.\n  Cure: make -n larger.")
    if args.json and not args.dry_run:
        raise JaxcommError("--json goes with --dry-run only.\n  Cure: leave out --json.")
    command = launch.command(words, is_module=args.is_module)
    coordinator = args.join or launch.local_coordinator()
    is_elastic = bool(args.restart or args.join)
    further = _every_collective(args.plan) if args.every_collective else {}
    if args.devices_per_process > 1 and (further or jaxlib_variables.is_on(os.environ)):
        further["PJRT_NPROC"] = _threads(args.devices_per_process)
    if args.transport is not None:
        further[environment.TRANSPORT] = args.transport
    bound = {} if args.no_bind or args.join else _bound(numbers)
    own = {
        process: launch.variables(
            process,
            args.processes,
            devices=args.devices_per_process,
            coordinator=coordinator,
            environment=os.environ,
            keeps_going=args.keep_going or is_elastic,
            own_service=launch.local_coordinator() if is_elastic and process == 0 else None,
            further=further,
            processors=len(bound[process]) if bound else None,
        )
        for process in numbers
    }
    if args.dry_run:
        own_service = coordinator_command(coordinator, args.processes) if is_elastic and not args.join else []
        _print(command, own, bound, own_service, as_json=args.json)
        return 0
    width = len(str(args.processes - 1))

    def show(process: int, line: str, is_error: bool) -> None:
        print(f"[{process:>{width}}] {line}", file=sys.stderr if is_error else output.of_programs(), flush=True)

    def keep_going(end: End) -> Reaction:
        if end.status == 0:
            return Reaction.GO_ON
        if not args.keep_going or not end.process:
            return Reaction.END_JOB
        _report(end, args.processes)
        return Reaction.GO_ON

    kept = launch.inherited(os.environ)
    environments = {process: kept | each for process, each in own.items()}
    if is_elastic:
        with Coordinator(coordinator, args.processes, serves=not args.join) as service:
            restarts = _Restarts(service, args.processes, args.restart, keeps_going=args.keep_going)
            failure = supervise.supervise(
                command, environments, show, restarts.after_end, processors=bound, kills_stopped=True
            )
            if failure is None and not restarts.has_ended_well and restarts.last_failure is not None:
                return _status(restarts.last_failure)
    else:
        failure = supervise.supervise(command, environments, show, keep_going, processors=bound)
    return _report(failure, args.processes) if failure else 0


class _Restarts:
    """Decides which processes start again, and reports each process's end to the coordination service."""

    def __init__(self, service: Coordinator, processes: int, most: int, *, keeps_going: bool) -> None:
        self._service, self._processes, self._most, self._keeps_going = service, processes, most, keeps_going
        self._restarts = 0
        self.has_ended_well = False  # whether a process has ended with status 0; then no process is started again
        self.last_failure: End | None = None

    def after_end(self, end: End) -> Reaction:
        """Returns the reaction to a process's end."""
        assert end.process is not None
        is_served = self._service.report_end(end.process)
        if end.status == 0:
            self.has_ended_well = True
            return Reaction.GO_ON
        self.last_failure = end
        if not is_served:
            print("error: JAX's coordination service has ended, which ends the job.", file=sys.stderr)
            return Reaction.END_JOB
        if self._restarts < self._most and not self.has_ended_well:
            self._restarts += 1
            _report(end, self._processes)
            print(f"  It is started again: restart {self._restarts} of {self._most}.", file=sys.stderr)
            return Reaction.START_AGAIN
        if self._keeps_going:
            _report(end, self._processes)
            return Reaction.GO_ON
        return Reaction.END_JOB


def _every_collective(plan: str | None) -> dict[str, str]:
    """The environment variables that make jaxcomm carry all collectives."""
    if reason := jaxlib_variables.why_not(os.environ):
        raise JaxcommError(f"--every-collective: {reason}.\n  Cure: fix that, or leave out --every-collective.")
    from jaxcomm.collectives.choice import AUTO

    if plan and plan != AUTO:
        load(plan)  # so that a mistake in the file ends the command before anything starts
        plan = os.path.abspath(plan)
    # With EVERY_COLLECTIVE, jaxcomm carries the collectives even if the program itself asks for Gloo.
    own = {environment.EVERY_COLLECTIVE: "1", **({environment.PLAN: plan} if plan else {})}
    return jaxlib_variables.variables() | own


def _threads(devices: int) -> str:
    return str(max(jaxlib_variables.THREADS, 2 * devices, int(os.environ.get("PJRT_NPROC") or 0)))


def _bound(numbers: Sequence[int]) -> dict[int, list[int]]:
    """Returns the processors of each process; {} if the processes use other devices, or get no equal shares."""
    if os.environ.get("JAX_PLATFORMS", "cpu") not in ("", "cpu"):
        return {}
    return dict(zip(numbers, shares(len(numbers)), strict=False))


def _print(
    command: list[str],
    variables: dict[int, dict[str, str]],
    bound: dict[int, list[int]],
    service: list[str],
    *,
    as_json: bool,
) -> None:
    """Prints the commands. `service`: the command of a coordination service outside the processes, or []."""
    if as_json:
        processes = [
            {"command": command, "environment": each, "processors": bound.get(process)}
            for process, each in variables.items()
        ]
        output.print_json("launch", {"coordinator": service, "processes": processes})
        return
    if service:
        print(shlex.join(service))
    for process, each in variables.items():
        words = ["taskset", "--cpu-list", ",".join(map(str, bound[process])), *command] if bound else command
        print(*(f"{name}={shlex.quote(value)}" for name, value in each.items()), shlex.join(words))


def _report(failure: End, processes: int) -> int:
    """Prints which process failed and how, and returns the exit code."""
    if failure.process is None:
        print(f"error: ended by signal {-failure.status} ({signal.strsignal(-failure.status)})", file=sys.stderr)
        return _status(failure)
    print(f"error: process {failure.process} of {processes} {_words(failure.status)}.", file=sys.stderr)
    if failure.last_lines:
        print("  It printed last:", *failure.last_lines, sep="\n    ", file=sys.stderr)
    return _status(failure)


def _status(failure: End) -> int:
    """The exit code for a failure, as in shells: the process's own status, or 128 + the signal's number."""
    return failure.status if failure.status > 0 else 128 - failure.status


def _words(status: int) -> str:
    if status > 0:
        return f"ended with exit status {status}"
    words = f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return words + "; the kernel does that when memory runs out" * (-status == signal.SIGKILL)
