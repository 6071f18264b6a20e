"""JAX's coordination service as a child of the launcher. It runs nothing else, so that it outlives the job's processes.

    with Coordinator("127.0.0.1:23456", processes=4) as coordinator:
        coordinator.report_end(2)

The child runs this module. Other supervisors may run it, too:

    python -m jaxcomm.distributed.launch.coordinator 10.0.0.1:1234 4

It prints a line when the service listens. From standard input it reads the numbers of processes that have ended, one
per line, and prints a line after each report. It serves until it is killed, or with `--until-eof` until standard input
is closed.

With `--live 3` the job begins with processes 0 to 2, and process 3 may join later. JAX's service and devices are for a
fixed number of processes, and a job begins when all of them have registered. So short-lived processes register in place
of the absent ones, and leave.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from jaxcomm.errors import JaxcommError

_REPORT_S: Final = 2  # time limit of a report
_PR_SET_PDEATHSIG: Final = 1  # from linux/prctl.h


class Coordinator:
    """A child process that runs the service, or only reports process ends to another service. Ends with its parent."""

    def __init__(self, address: str, processes: int, *, serves: bool = True) -> None:
        """Starts the child, and returns when it serves or can report.

        Args:
          address: "host:port" of the service.
          processes: the number of processes in the job.
          serves: False if the service runs elsewhere. The child then only reports ends of processes.

        Raises:
          JaxcommError: the service could not start.
        """
        self._service = subprocess.Popen(
            [*coordinator_command(address, processes), "--until-eof", *([] if serves else ["--only-reports"])],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end the service before the job's processes
        )
        assert self._service.stdin is not None and self._service.stdout is not None
        self._stdin, self._stdout = self._service.stdin, self._service.stdout
        if not self._service.stdout.readline():
            self._service.wait()
            raise JaxcommError(
                f"JAX's coordination service could not listen at {address}.\n  Cure: start the job again."
            )

    def report_end(self, process: int) -> bool:
        """Reports that a process of the job has ended, and waits until the service knows it, for two seconds at most.

        Returns False if the service itself has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(f"{process}\n")
            self._stdin.flush()
            self._stdout.readline()  # waits, because a late report would end a newer start of the process
        return self._service.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._service.kill()
        self._service.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()


def coordinator_command(address: str, processes: int) -> list[str]:
    """The command of the service's process."""
    return [sys.executable, "-m", __spec__.name, address, str(processes)]


def _main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="JAX's coordination service")
    parser.add_argument("address", help="host:port at which the service listens")
    parser.add_argument("processes", type=int, help="number of processes in the job")
    parser.add_argument(
        "--heartbeat-timeout",
        type=int,
        metavar="S",
        help="seconds without heartbeats after which a process counts as dead (100); the processes pass the same to "
        "jax.distributed.initialize",
    )
    parser.add_argument(
        "--live", type=int, metavar="N", help="the job begins with processes 0 to N - 1; the others may join later"
    )
    parser.add_argument(
        "--devices-per-process", type=int, default=1, metavar="N", help="with --live: CPU devices of each process (1)"
    )
    parser.add_argument("--until-eof", action="store_true", help="end when standard input is closed")
    parser.add_argument("--only-reports", action="store_true", help="report to a service that runs already")
    options = parser.parse_args()
    from jaxcomm.jax_compat import coordination

    if options.only_reports:
        print(f"reporting to {options.address}", flush=True)
        _report_ends(options.address)
        return
    live = options.processes if options.live is None else options.live
    if not 1 <= live <= options.processes:
        parser.error(f"--live is {live}; it is a number from 1 to {options.processes}")
    heartbeat_s = options.heartbeat_timeout or coordination.HEARTBEAT_S
    absent = range(live, options.processes)
    # Forks before the service has threads.
    reporter = _fork(lambda: _report_ends(options.address))
    if absent:
        _fork(lambda: _register(options.address, options.processes, absent, options.devices_per_process))
    service = coordination.serve(options.address, options.processes, heartbeat_s)
    print(f"listening at {options.address}", flush=True)
    os.waitpid(reporter, 0)
    if not options.until_eof:
        signal.pause()
    del service


def _fork(run: Callable[[], object]) -> int:
    """Runs a function in a child, which ends when this process ends. Returns the child's process ID."""
    if child := os.fork():
        return child
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        run()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _register(address: str, processes: int, absent: Iterable[int], devices: int) -> None:
    """Registers the absent processes with the service. A separate child process makes each registration."""
    from jaxcomm.distributed.connect import generations
    from jaxcomm.jax_compat import coordination

    def register(process: int) -> None:
        coordination.register_absent(address, processes, process, devices, *generations.entry_of_ended(process))

    for child in [_fork(functools.partial(register, process)) for process in absent]:
        os.waitpid(child, 0)


def _report_ends(address: str) -> None:
    """Reports the end of each process whose number is on standard input. Each report runs in its own process.

    JAX ends the reporting process if the reported process has registered again meanwhile. A report waits until all
    processes of the job have registered, and gives up after `_REPORT_S` seconds. Giving up is harmless, because no
    process counts as live before all have registered.
    """
    from jaxcomm.distributed.connect import generations
    from jaxcomm.jax_compat import coordination

    def report(process: int) -> None:
        signal.alarm(_REPORT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        coordination.report_end(address, process, *generations.entry_of_ended(process))

    for line in sys.stdin:
        os.waitpid(_fork(functools.partial(report, int(line))), 0)
        print(f"process {line.strip()} has ended", flush=True)


if __name__ == "__main__":
    _main()
