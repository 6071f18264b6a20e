"""`jaxcomm launch` in a simulated job: its own code supervises the processes, over a simulated operating system."""

from __future__ import annotations

import contextlib
import errno
import signal
from argparse import Namespace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import jax

from jaxcomm.distributed.connect.generations import entry_of_ended
from jaxcomm.distributed.launch import commands
from tests.distributed.simulated_job.launch_invariants import REPORT_S, LaunchInvariants
from tests.distributed.simulated_job.modules import Modules, Overlay
from tests.distributed.simulated_job.operating_system import Process, System
from tests.distributed.simulated_job.scheduler import Owner, Waiters

if TYPE_CHECKING:
    from tests.distributed.simulated_job.job import Job
    from tests.distributed.simulated_job.start import Start

_OTHER_SEED: Final = 1 << 40  # the launcher's faults are drawn apart from those of the processes
_LAUNCH: Final = "jaxcomm.cli.launch"
_SUPERVISE: Final = "jaxcomm.distributed.launch.supervise"
_CALLS: Final = ("Popen", "close", "killpg", "pidfd_open", "read", "write")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher(Owner):
    """The launcher's process, and the faults that strike it.

    Attributes:
      is_over: whether the launcher has ended.
      is_refused: whether the system has refused something to the launcher, which then ends with an error.
      most_restarts: the value of `--restart`.
    """

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.scheduler = job, job.scheduler
        self.random = random = Random(seed + _OTHER_SEED)
        self.is_over = self.is_refused = False
        self.most_restarts = random.choice([10] * 16 + [0, 1, 2, 3])
        self._prints = random.random() < 0.3  # whether the processes print
        self._ignores_sigterm = random.random() < 0.2  # as JAX's own handler
        self._ends = 0
        self._rest: dict[Process, list[bytes]] = {}  # by stream: the part of a line that is still to be written
        self._draw_faults()
        self.system = System(
            self.scheduler,
            self,
            random,
            before_call=self._before_call,
            begin=self._begin,
            send=self._send,
            take=lambda number: self._invariants.take(number),
            report=self.report,
        )
        if random.random() < 0.1:
            self.system.handlers[signal.SIGHUP] = signal.SIG_IGN  # as under nohup
        self._invariants = LaunchInvariants(self)

    def _draw_faults(self) -> None:
        """Draws the faults. The count -1 means that the call never fails."""
        random, processes = self.random, self.job.processes
        self._signals: list[tuple[int, float, bool]] = []  # number, when, and whether that counts ended processes
        if random.random() < 0.15:
            self._signals = [self._draw_signal() for _ in range(random.choice([1, 1, 2, 3]))]
        self._killed_at = random.uniform(0.0, 5.0) if random.random() < 0.02 else None
        self._guard_killed_at = random.uniform(0.0, 5.0) if random.random() < 0.02 else None
        self._deadly = random.choice(_CALLS) if random.random() < 0.03 else None  # a call before which it is killed
        self._calls = random.randrange(2 * processes)  # earlier calls of that kind
        self._starts = random.randrange(2 * processes) if random.random() < 0.03 else -1
        self._opens = random.randrange(2 * processes) if random.random() < 0.02 else -1
        self._lines = random.randrange(20) if random.random() < 0.03 else -1  # lines until nobody reads them
        self._reports = random.randrange(4) if random.random() < 0.03 else -1  # reports until the service ends
        self._has_descendants = random.random() < (0.2 if self._deadly is None else 0.6)

    def _draw_signal(self) -> tuple[int, float, bool]:
        random = self.random
        number = random.choice(_SIGNALS)
        if random.random() < 0.3:
            return number, random.choice([1, 1, 2, 3]), True
        return number, random.choice([random.uniform(0.0, 3.0), random.uniform(0.0, 30.0)]), False

    def run(self) -> None:
        """Runs the command, which ends when all processes have ended."""
        for number, when, counts_ends in self._signals:
            if not counts_ends:
                self.scheduler.at(when, lambda number=number: self._strike(number))
        if self._killed_at is not None:
            self.scheduler.at(self._killed_at, self._kill)
        if self._guard_killed_at is not None:
            self.scheduler.at(self._guard_killed_at, self.system.kill_guard)
        service = SimpleNamespace(Coordinator=lambda *_, **__: contextlib.nullcontext(self), coordinator_command=None)
        own_commands = Overlay(commands, command=lambda *_, **__: ["train"], local_coordinator=lambda: "coordinator:1")
        stand_ins = self.system.stand_ins() | {
            "jaxcomm.distributed.launch.coordinator": service,
            "jaxcomm.distributed.launch.commands": own_commands,
        }
        modules = Modules(stand_ins, {_LAUNCH, _SUPERVISE}, print=self._print)
        modules[_SUPERVISE].supervise = self._invariants.checked(modules[_SUPERVISE].supervise)
        options = Namespace(
            command=["train"],
            devices_per_process=1,
            dry_run=False,
            every_collective=False,
            is_module=False,
            json=False,
            join=None,
            keep_going=False,
            no_bind=True,
            numbers=None,
            plan=None,
            processes=self.job.processes,
            restart=self.most_restarts,
            transport=None,
        )
        try:
            code = modules[_LAUNCH].run(options)
        except OSError as error:
            if not self.is_refused:
                raise
            self.scheduler.say(f"launcher: fails: {error}")
        else:
            self._invariants.check_exit(code)
        self.is_over = True

    def has_ended(self, process: Process, status: int) -> None:
        """A process has ended."""
        if self._prints and self.random.random() < 0.5:
            self._write(process, is_last=self.random.random() < 0.5)
        if self._prints and process.has_descendants:
            delay = 0.001 * self.random.random()
            self.scheduler.at(self.scheduler.now + delay, lambda: process.has_descendants and self._write(process))
        self.system.has_ended(process, status)
        self._ends += 1
        for number, when, counts_ends in self._signals:
            if counts_ends and when == self._ends:
                self._strike(number)

    def process_of(self, start: Start) -> Process:
        """The process whose program a start is."""
        return next(each for each in self.system.processes if each.start is start)

    def stop(self, start: Start, seconds: float) -> None:
        """A process is stopped for some seconds. The launcher must kill it after about ten."""
        self._invariants.stop(self.process_of(start), seconds)

    def report(self, text: str) -> None:
        """An invariant did not hold."""
        self.job.wrong.append(f"launcher: {text}")

    def report_end(self, process: int) -> bool:
        """Stands in for `Coordinator.report_end`: a process that is killed after some time reports the end."""
        if not self.is_served():
            return False
        self._reports -= 1
        job, reporter, done = self.job, Owner(), []

        stand_in = SimpleNamespace(get_distributed_runtime_client=lambda address, process, **_: job.new_client(process))
        modules = Modules({"jaxlib._jax": stand_in}, {"jaxcomm.jax_compat.coordination"})

        def report() -> None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                modules["jaxcomm.jax_compat.coordination"].report_end(
                    "coordinator:1", process, *entry_of_ended(process)
                )
            done.append(True)
            self.scheduler.notify(waiting)

        waiting: Waiters = []
        self.scheduler.spawn(reporter, report)
        if not done:
            self.scheduler.wait(waiting, REPORT_S)
        self.scheduler.end(reporter)
        return True

    def is_served(self) -> bool:
        """Whether the coordination service runs."""
        return self._reports != 0

    # Faults.

    def _strike(self, number: int) -> None:
        """The launcher receives a signal."""
        if not self.is_over and not self.is_dead and self.system.signal_launcher(number):
            self.scheduler.say(f"launcher: FAULT {signal.Signals(number).name}")
            self._invariants.arrive(number)

    def _kill(self) -> None:
        """The launcher receives SIGKILL."""
        if self.is_over or self.is_dead or not self.system.has_guard:
            return
        self.scheduler.say("launcher: FAULT SIGKILL")
        self.job.is_failing = self.is_refused = True
        self.system.kill_launcher()

        def end() -> None:
            self._invariants.check_that_all_have_ended()
            self.is_over = True

        self.scheduler.at(self.scheduler.now + 0.01, end)

    def _before_call(self, name: str) -> None:
        """The launcher calls the system."""
        if name == self._deadly:
            if self._calls == 0:
                self._kill()
            self._calls -= 1
        if name == "pidfd_open":
            if self._opens == 0:
                self._refuse(OSError(errno.EMFILE, "Too many open files"))
            self._opens -= 1

    def _print(self, *words: object, **_: object) -> None:
        """Stands in for `print`."""
        if self._lines == 0:
            self._refuse(BrokenPipeError(errno.EPIPE, "Broken pipe"))
        self._lines -= 1

    def _refuse(self, error: OSError) -> None:
        self.is_refused = self.job.is_failing = True
        raise error

    # The processes.

    def _begin(self, process: Process) -> None:
        """Starts a process. Its program runs a little later."""
        if self._starts == 0:
            self._refuse(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
        self._starts -= 1
        self._invariants.begin(process)

        def begin() -> None:
            if process.status is None:
                process.has_descendants = self._has_descendants and self.random.random() < 0.5
                process.leaves_writer = self._has_descendants and self.random.random() < 0.3
                process.start = start = self.job.start(process.number)
                if self._ignores_sigterm:
                    start.handlers[signal.SIGTERM] = lambda *_: None

        is_first = len(self.system.processes) < self.job.processes
        delay = 0.3 * self.scheduler.random.random() if is_first else 0.01
        self.scheduler.at(self.scheduler.now + delay, begin)
        if self._prints:
            self._print_later(process, 10)

    def _send(self, process: Process, number: int) -> None:
        """A process that has not ended receives a signal."""
        self._invariants.send(process, number)
        start = process.start
        if number == signal.SIGTERM and start is not None:
            self.job.terminate(start)
        elif start is not None:
            self.scheduler.at(self.scheduler.now, lambda: self.job.end(start, -number))
        else:
            self.scheduler.say(f"process {process.number} ends with status {-number} before its program runs")
            self.has_ended(process, -number)

    def _print_later(self, process: Process, lines: int) -> None:
        def event() -> None:
            if process.status is None:
                self._write(process)
                self._print_later(process, lines - 1)
                if self.random.random() < 0.01:
                    self.system.close_stream(process, self.random.randrange(2))

        if lines:
            self.scheduler.at(self.scheduler.now + self.random.expovariate(2.0), event)

    def _write(self, process: Process, *, is_last: bool = False) -> None:
        """Writes a line or a part of it, after what is left of earlier lines."""
        rest, stream = self._rest.setdefault(process, [b"", b""]), self.random.randrange(2)
        data = rest[stream] + f"❄ of {process.pid}, {self.scheduler.now:.3f}".encode()
        data += self.random.choice([b"\n", b"\n", b"\r\n", b""])
        length = len(data) if is_last else self.random.randrange(len(data) + 1)
        rest[stream] = data[length:]
        self.system.write(process, stream, data[:length])
