"""Invariants of `jaxcomm launch` in a simulated job."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxcomm.distributed.launch.supervise import GRACE_S
from tests.distributed.simulated_job.operating_system import Process

if TYPE_CHECKING:
    from tests.distributed.simulated_job.supervisor import Launcher

REPORT_S: Final = 2.0  # time limit of a report to the coordination service
_STOPPED_S: Final = 10.0
_SOON_S: Final = 0.1


class LaunchInvariants:
    """Checks the launcher's calls of the system, its reactions and its result."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, self._system, self._scheduler = launcher, launcher.system, launcher.scheduler
        self._count, self._most = launcher.job.processes, launcher.most_restarts
        self._cause: tuple[int | None, int] | None = None  # what ended the job: a process and status, or a signal
        self._begun = self._kills_at = 0.0  # when the job has begun to end, and when processes are killed
        self._has_ended_well = False
        self._reporting_s = 0.0  # time that reports have taken
        self._arrived: deque[tuple[float, float]] = deque()  # unread signals: when, and `_reporting_s`
        self._ignored = {each for each, handler in self._system.handlers.items() if handler == signal.SIG_IGN}
        self._longest_look_s = 1.1 + REPORT_S * self._count  # between two looks for stopped processes
        self._stopped: dict[Process, tuple[float, float]] = {}  # from when until when
        self._terminated: set[Process] = set()
        self._reported: set[Process] = set()
        self._shown: dict[Process, list[tuple[str, bool]]] = {}

    # Signals to the launcher.

    def arrive(self, number: int) -> None:
        """The launcher has received a signal."""
        if number in self._ignored:
            self._report(f"the ignored signal {number} has an effect")
        self._arrived.append((self._scheduler.now, self._reporting_s))

    def take(self, number: int) -> None:
        """The launcher notices a signal. A second one kills all processes at once."""
        arrived, reporting_s = self._arrived.popleft()
        if self._scheduler.now - arrived > self._reporting_s - reporting_s + _SOON_S:
            self._report(f"signal {number} is noticed after {self._scheduler.now - arrived:.1f} s")
        if self._cause is None:
            self._begin_to_end(None, -number)
        else:
            self._kills_at = min(self._kills_at, self._scheduler.now)

    # Processes.

    def begin(self, process: Process) -> None:
        """A process is started."""
        if self._cause is not None:
            self._report(f"process {process.number} starts after {self._cause}")
        if len(self._system.processes) >= self._count + self._most:
            self._report(f"process {process.number} starts again after {self._most} restarts")
        if any(each.number == process.number and not each.is_reaped for each in self._system.processes):
            self._report(f"process {process.number} starts though it runs")

    def stop(self, process: Process, seconds: float) -> None:
        """A process is stopped for some seconds."""
        now = self._scheduler.now
        since, until = self._stopped.get(process, (now, now))
        is_one_stop = now - until < self._longest_look_s  # the launcher may not have seen that it ran
        self._stopped[process] = since if is_one_stop else now, now + seconds

        def check() -> None:
            if process.status is None and self._most:
                self._report(f"process {process} was stopped for {seconds} s")

        if seconds > _STOPPED_S + 2.0 * self._longest_look_s:
            self._scheduler.at(now + seconds, check)

    def send(self, process: Process, number: int) -> None:
        """A process that has not ended gets a signal from the launcher, or because the launcher has ended."""
        now = self._scheduler.now
        if self._launcher.is_refused:
            return
        if number == signal.SIGTERM:
            is_right = self._cause is not None and now < self._begun + _SOON_S
            self._terminated.add(process)
        else:
            since, until = self._stopped.get(process, (now, 0.0))
            was_stopped = now < until + _SOON_S and now - since > _STOPPED_S
            had_time = process in self._terminated or self._kills_at < self._begun + GRACE_S
            is_right = was_stopped or (self._cause is not None and now >= self._kills_at and had_time)
        if not is_right:
            self._report(f"process {process} gets signal {number}")

    def check_that_all_have_ended(self) -> None:
        """No process outlives the launcher."""
        for each in self._system.processes:
            if each.status is None or each.has_descendants or not (each.is_reaped or self._launcher.is_dead):
                self._report(f"process {each} outlives the launcher")

    # Calls.

    def checked(self, supervise: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls `supervise`, and checks what it calls and returns."""

        def made(
            command: Sequence[str],
            environments: Sequence[Any],
            show: Callable[..., None],
            after_end: Callable[[Any], Any],
            **keywords: Any,
        ) -> Any:
            def checked_show(number: int, line: str, is_error: bool) -> None:
                self._shown.setdefault(self._latest(number), []).append((line, is_error))
                show(number, line, is_error)

            before = dict(self._system.handlers)
            try:
                failure = supervise(
                    command, environments, checked_show, lambda end: self._after_end(after_end, end), **keywords
                )
            finally:
                if not self._launcher.is_dead:
                    self.check_that_all_have_ended()
            self._check_result(failure)
            if not self._system.is_tidy() or self._system.handlers != before:
                self._report("descriptors, groups of the guard, or handlers of signals are left")
            return failure

        return made

    def check_exit(self, code: int) -> None:
        """The launcher ends with the status of what ended the job."""
        status = self._cause[1] if self._cause else 0
        if code != (status if status >= 0 else 128 - status):
            self._report(f"exit status {code} after {self._cause}")

    def _check_result(self, failure: Any) -> None:
        now, processes = self._scheduler.now, self._system.processes
        if (failure and failure[:2]) != self._cause:
            self._report(f"{failure} is returned after {self._cause}")
        if self._cause is not None and now > self._kills_at + _SOON_S:
            self._report(f"the job has ended {now - self._kills_at:.1f} s late")
        if self._cause is None and self._arrived and self._arrived[0][0] < self._system.selected_at:
            self._report("a signal has no effect")
        if self._cause is None and len(self._reported) < len(processes):
            self._report("the end of a process is not reported")
        for each in processes:
            self._check_lines(each)

    def _after_end(self, after_end: Callable[[Any], Any], end: Any) -> Any:
        process = self._latest(end.process)
        if self._cause is not None or process in self._reported or not process.is_reaped:
            self._report(f"{end} is reported again, too early, or after {self._cause}")
        self._check_lines(process)
        last_lines = tuple(line for line, _ in self._shown.get(process, [])[-10:])
        if (process.status, last_lines) != (end.status, end.last_lines):
            self._report(f"{end} is reported for status {process.status} and {last_lines}")
        self._reported.add(process)
        began, is_served = self._scheduler.now, self._launcher.is_served()
        restarts = len(self._system.processes) - self._count
        reaction = after_end(end)
        self._reporting_s += self._scheduler.now - began
        if end.status == 0:
            self._has_ended_well, expected = True, "GO_ON"
        elif restarts < self._most and not self._has_ended_well and is_served:
            expected = "START_AGAIN"
        else:
            expected = "END_JOB"
            self._begin_to_end(end.process, end.status)
        if reaction.name != expected:
            self._report(f"{reaction} follows {end}")
        return reaction

    def _begin_to_end(self, process: int | None, status: int) -> None:
        self._launcher.job.is_failing = True
        self._cause, self._begun = (process, status), self._scheduler.now
        self._kills_at = self._begun + GRACE_S

    def _check_lines(self, process: Process) -> None:
        """All that a process has printed until its end was shown."""
        for stream, written in enumerate(process.written):
            *expected, last = re.split(r"\r?\n", written.decode(errors="replace"))
            expected += [last.rstrip("\r")] if last else []
            found = [line for line, is_error in self._shown.get(process, []) if is_error == stream]
            if expected != found:
                self._report(f"process {process} printed {expected}, but {found} is shown")

    def _latest(self, number: int) -> Process:
        return next(each for each in reversed(self._system.processes) if each.number == number)

    def _report(self, text: str) -> None:
        self._launcher.report(text)
