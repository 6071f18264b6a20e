"""Runs processes until all have ended, and leaves no process behind.

A failure ends all processes, unless the caller lets the other processes go on or starts the failed process again.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

GRACE_S = 3.0  # time from SIGTERM to SIGKILL; JAX's own handler of SIGTERM does not end a process
_LAST_LINES = 10
_LOOK_S: Final = 1.0  # time between two checks for stopped processes
_STOPPED_S: Final = 10.0
_PROGRESS_S: Final = 1.0  # time between two shown states of a progress bar
_MOST_LINE_BYTES: Final = 65536
_END: Final = re.compile(rb"\r?\n|\r(?!\Z)")  # a \r at the end of the data ends no line yet: \n may follow
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_prctl = ctypes.CDLL(None).prctl

Show = Callable[[int, str, bool], None]


class Reaction(enum.Enum):
    """The supervisor's reaction to the end of a process."""

    GO_ON = "the other processes go on"
    START_AGAIN = "the process is started again, and the other processes go on"
    END_JOB = "all processes are ended"


class End(NamedTuple):
    """The end of a process, or the signal that ended the job.

    Attributes:
      process: the process; None if a signal to this process ended the job.
      status: the exit status of `process`, or minus the number of the signal that ended the process or the job.
      last_lines: the last lines that `process` printed.
    """

    process: int | None
    status: int
    last_lines: tuple[str, ...] = ()


def supervise(
    command: Sequence[str],
    environments: Mapping[int, Mapping[str, str]],
    show: Show,
    after_end: Callable[[End], Reaction] = lambda end: Reaction.END_JOB if end.status else Reaction.GO_ON,
    *,
    processors: Mapping[int, Sequence[int]] = MappingProxyType({}),
    kills_stopped: bool = False,
) -> End | None:
    """Runs the command once in each environment. Must be called in the main thread.

    SIGINT, SIGTERM and SIGHUP to this process end all processes; the second such signal kills the processes at once.

    Args:
      command: program and arguments.
      environments: the environment of each process, by the process's number.
      show: called with the process, a line, and whether the line is from standard error.
      after_end: called when a process has ended by itself or by a signal from elsewhere.
      processors: the processors on which each process may run, by the process's number; all for other processes.
      kills_stopped: whether to kill processes that a signal has stopped and that stay stopped for ten seconds.

    Returns:
      The failure that ended the job, or None. All processes have ended.
    """
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_signals())
        groups = stack.enter_context(_guard())
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(signals, selectors.EVENT_READ)
        children: list[_Child] = []
        stack.callback(_end, children)

        def start(process: int) -> None:
            child = _Child(process, command, environments[process], show, groups, processors.get(process))
            children.append(child)
            for file in (child.ended, *child.streams):
                selector.register(file, selectors.EVENT_READ, child)

        for process in environments:
            start(process)
        failure: End | None = None
        deadline: float | None = None  # the time of SIGKILL for remaining processes; None before SIGTERM is sent
        while children:
            timeouts = [max(0.0, deadline - time.monotonic())] if deadline is not None else []
            ready = selector.select(min([*timeouts, *([_LOOK_S] if kills_stopped else [])], default=None))
            for file, child in ((key.fd, key.data) for key, _ in ready):
                if file == signals:
                    number = os.read(signals, 1)[0]
                    if failure is not None:
                        deadline = 0.0
                    failure = failure or End(None, -number)
                elif file == child.ended:
                    for each in (child.ended, *child.streams):
                        selector.unregister(each)
                    children.remove(child)
                    end = End(child.process, child.end(), tuple(child.last_lines))
                    if failure is not None:
                        continue
                    reaction = after_end(end)
                    if reaction is Reaction.START_AGAIN:
                        start(child.process)
                    elif reaction is Reaction.END_JOB:
                        failure = end
                elif child in children and not child.read(file):
                    selector.unregister(file)
                    child.streams.pop(file)
            if failure is not None and deadline is None:
                deadline = time.monotonic() + GRACE_S
                for child in children:
                    child.signal(signal.SIGTERM)
            elif deadline is not None and deadline <= time.monotonic():
                for child in children:
                    child.signal(signal.SIGKILL)
                deadline = time.monotonic() + GRACE_S
            for child in children:
                if kills_stopped and child.seconds_stopped() > _STOPPED_S:
                    child.signal(signal.SIGKILL)
    return failure


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.signal(signal.SIGKILL)
    for child in children:
        with contextlib.suppress(OSError):  # `show` may fail on the last lines
            child.end()


class _Child:
    """A process and all processes that it starts, in one process group.

    Attributes:
      ended: a descriptor that is readable once the process has ended.
      streams: the descriptors of the process's open output streams, each with a line splitter.
      last_lines: the last lines of the process's output.
    """

    def __init__(
        self,
        process: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        show: Show,
        groups: int,
        processors: Sequence[int] | None,
    ) -> None:
        self.process = process
        self._groups = groups  # the guard's descriptor
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._show = show
        self._stopped_since: float | None = None
        launcher = os.getpid()

        def before_command() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with the launcher
            if os.getppid() != launcher:
                os._exit(1)
            if processors is not None:
                os.sched_setaffinity(0, processors)

        self._running = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=before_command,
        )
        self.pid = self._running.pid
        self._tell_guard("start")
        try:
            self.ended = os.pidfd_open(self.pid)
        except OSError:
            self.signal(signal.SIGKILL)
            self._tell_guard("end")
            self._running.wait()
            raise
        assert self._running.stdout is not None and self._running.stderr is not None
        self._stderr = self._running.stderr.fileno()
        self.streams = {self._running.stdout.fileno(): Lines(), self._stderr: Lines()}
        for file in self.streams:
            os.set_blocking(file, False)

    def read(self, file: int) -> bool:
        """Reads available output and shows its lines. Returns False if no output is available or the stream ended."""
        try:
            data = os.read(file, 65536)
        except BlockingIOError:
            return False
        self._show_lines(file, data)
        return bool(data)

    def signal(self, number: int) -> None:
        """Sends a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def seconds_stopped(self) -> float:
        """Returns the seconds since a call of this method first found the process stopped by a signal; 0 if it runs."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = ""
        if state != "T":
            self._stopped_since = None
            return 0.0
        self._stopped_since = self._stopped_since or time.monotonic()
        return time.monotonic() - self._stopped_since

    def end(self) -> int:
        """Kills the group, shows its last output, and returns the exit status of its first process."""
        self.signal(signal.SIGKILL)  # the group's number cannot be reused before its first process is reaped
        self._tell_guard("end")  # after the kill, and before `wait` lets the system reuse the number
        status = self._running.wait()
        for file in self.streams:
            while self.read(file):
                pass
            self._show_lines(file, b"")  # shows an unfinished line if another program keeps the stream open
        os.close(self.ended)
        for stream in (self._running.stdout, self._running.stderr):
            if stream is not None:
                stream.close()
        return status

    def _show_lines(self, file: int, data: bytes) -> None:
        for line in self.streams[file].add(data, time.monotonic()):
            self.last_lines.append(line)
            self._show(self.process, line, file == self._stderr)

    def _tell_guard(self, change: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the job goes on if the guard was killed
            os.write(self._groups, f"{change} {self.pid}\n".encode())


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yields a descriptor from which the caller reads the numbers of signals that end the job."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    waking = signal.set_wakeup_fd(writer)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in handlers.items():
        if handler != signal.SIG_IGN:  # background jobs ignore some signals, and must keep ignoring them
            signal.signal(number, lambda *_: None)
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waking)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _guard() -> Iterator[int]:
    """Yields a descriptor on which to report process groups to a guard, which kills them if this process is killed.

    The guard is needed because Linux can end a killed process's children, but not its grandchildren.
    """
    script = """
        while read change group; do
          left=
          for each in $groups; do [ "$each" = "-$group" ] || left="$left $each"; done
          groups=$left
          if [ "$change" = start ]; then groups="$groups -$group"; fi
        done
        kill -s KILL -- $groups"""
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as guard:
        assert guard.stdin is not None
        try:
            yield guard.stdin.fileno()
        finally:
            guard.kill()  # the groups have ended, so the guard must not kill them


class Lines:
    """Splits bytes into lines.

    Text that ends in a carriage return is a state of a progress bar; at most one state a second is returned.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._next_progress = 0.0

    def add(self, data: bytes, now: float) -> list[str]:
        """Returns the lines that `data` completes, and an unfinished line if it exceeds 64 KiB or the stream has ended.

        Args:
          data: the bytes that have arrived; b"" for the end of the stream.
          now: the current time in seconds.
        """
        self._rest += data
        found, start = [], 0
        for end in _END.finditer(self._rest):
            text = self._rest[start : end.start()]
            start = end.end()
            if end[0] != b"\r":
                found.append(text)
            elif text and now >= self._next_progress:
                found.append(text)
                self._next_progress = now + _PROGRESS_S
        self._rest = self._rest[start:]
        if self._rest and (not data or len(self._rest) > _MOST_LINE_BYTES):
            found.append(self._rest.rstrip(b"\r"))
            self._rest = b""
        return [line.decode(errors="replace") for line in found]
