"""Stand-ins for the operating system as `jaxcomm launch` sees it: processes, pipes, signals and time are simulated."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit

from tests.distributed.simulated_job.modules import Overlay
from tests.distributed.simulated_job.scheduler import Owner, Scheduler, Waiters

if TYPE_CHECKING:
    from tests.distributed.simulated_job.start import Start

_LAUNCHER_PID = 500
_FIRST_FILE = 3  # after the standard streams


class Pipe:
    """The unread bytes of a pipe, and whether some process can still write."""

    def __init__(self) -> None:
        self.data = b""
        self.is_open = True

    def is_readable(self) -> bool:
        return bool(self.data) or not self.is_open


class Process:
    """A child of the launcher and the processes that it has started.

    Attributes:
      number: the number of the process in the job.
      group: the number of its process group.
      start: its program, once it runs.
      status: its exit status, once it has ended.
      streams: the standard output and the standard error.
      written: all bytes that were written to each stream.
      has_descendants: whether other processes of its group run.
      leaves_writer: whether a process outside its group keeps the streams open.
      dies_with_launcher: whether it has asked the system for SIGKILL at the launcher's end.
    """

    def __init__(self, pid: int, number: int, group: int) -> None:
        self.pid, self.number, self.group = pid, number, group
        self.start: Start | None = None
        self.status: int | None = None
        self.is_reaped = self.has_descendants = self.leaves_writer = self.dies_with_launcher = False
        self.streams = Pipe(), Pipe()
        self.written = [b"", b""]

    def __str__(self) -> str:
        return str(self.start or self.number)

    def is_readable(self) -> bool:
        """Whether the descriptor of the process is readable."""
        return self.status is not None

    def close_streams(self) -> None:
        """Ends the streams if no process can write to them."""
        for each in self.streams:
            each.is_open &= self.status is None or self.has_descendants or self.leaves_writer


class System:
    """The operating system.

    Args:
      launcher: the launcher, whose tasks call the stand-ins.
      random: decides the order of ready descriptors, the bytes of each read, and the delay of a kill.
      before_call: called with the name of each call of the launcher, before the call.
      begin: called with each new process.
      send: called with a process that has not ended and a signal that it receives.
      take: called with each signal that the launcher reads from its descriptor for signals.
      report: called with each misuse of the operating system.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        launcher: Owner,
        random: Random,
        *,
        before_call: Callable[[str], None],
        begin: Callable[[Process], None],
        send: Callable[[Process, int], None],
        take: Callable[[int], None],
        report: Callable[[str], None],
    ) -> None:
        self.processes: list[Process] = []
        self.files: dict[int, Any] = {}
        self.guarded: set[int] = set()  # the process groups that the guard kills if the launcher is killed
        self.handlers: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
        self.has_guard = True
        self.selected_at = 0.0  # when the latest call of `select` returned
        self._scheduler, self._launcher, self._random = scheduler, launcher, random
        self._before_call, self._begin, self._send, self._take = before_call, begin, send, take
        self._report = report
        self._woken: Waiters = []
        self._wakeup_file = -1
        self._forked: Process | None = None  # the process whose first code runs

    # Events outside the launcher.

    def write(self, process: Process, stream: int, data: bytes) -> None:
        """A process, or one of its group, writes to one of its streams."""
        if process.streams[stream].is_open and not process.is_reaped:
            process.streams[stream].data += data
            process.written[stream] += data
            self._scheduler.wake(self._woken)

    def close_stream(self, process: Process, stream: int) -> None:
        process.streams[stream].is_open = False
        self._scheduler.wake(self._woken)

    def has_ended(self, process: Process, status: int) -> None:
        process.status = status
        process.close_streams()
        self._scheduler.notify(self._woken)

    def signal_launcher(self, number: int) -> bool:
        """The launcher receives a signal. Returns whether it is neither ignored nor left to the default handler."""
        if self.handlers[number] in (signal.SIG_DFL, signal.SIG_IGN):
            return False
        self.files[self._wakeup_file].data += bytes([number])
        self._scheduler.wake(self._woken)
        return True

    def kill_launcher(self) -> None:
        """The launcher receives SIGKILL. The system ends its children, and the guard the groups that it knows."""
        self._scheduler.end(self._launcher)
        for process in self.processes:
            if process.dies_with_launcher and process.status is None:
                self._send(process, signal.SIGKILL)
        for group in self.guarded:
            self._kill_group(self._of_group(group))

    def kill_guard(self) -> None:
        self.has_guard = False
        self.guarded.clear()

    def is_tidy(self) -> bool:
        """Whether the launcher has closed all descriptors, and the guard has to kill nothing."""
        return not self.files and not self.guarded and self._wakeup_file == -1

    # Calls of the launcher.

    def stand_ins(self) -> dict[str, object]:
        """The modules that the launcher imports."""
        own_os = {
            name: self._call_of_launcher(name, call)
            for name, call in {
                "close": self._close,
                "getpid": lambda: _LAUNCHER_PID,
                "getppid": lambda: _LAUNCHER_PID,
                "killpg": self._killpg,
                "pidfd_open": self._open_process,
                "pipe": self._pipe,
                "read": self._read,
                "set_blocking": lambda file, is_blocking: self.files[file],
                "write": self._write,
            }.items()
        }
        own_signal = {
            "getsignal": self.handlers.__getitem__,
            "set_wakeup_fd": self._call_of_launcher("set_wakeup_fd", self._set_wakeup_file),
            "signal": self._call_of_launcher("signal", self.handlers.__setitem__),
        }
        return {
            "ctypes": Overlay(ctypes, CDLL=lambda _: SimpleNamespace(prctl=self._prctl)),
            "os": Overlay(os, **own_os),
            "pathlib": SimpleNamespace(Path=lambda path: SimpleNamespace(read_text=lambda: self._read_text(path))),
            "selectors": Overlay(selectors, DefaultSelector=lambda: _Selector(self)),
            "signal": Overlay(signal, **own_signal),
            "subprocess": Overlay(subprocess, Popen=self._call_of_launcher("Popen", self._popen)),
            "time": SimpleNamespace(monotonic=lambda: 1000.0 + self._scheduler.now),
        }

    def open_file(self, file: Any) -> int:
        """Returns the lowest free descriptor, as the system does."""
        number = _FIRST_FILE
        while number in self.files:
            number += 1
        self.files[number] = file
        return number

    def select(self, files: Mapping[int, Any], seconds: float | None) -> list[int]:
        """Waits until some descriptors are readable, or for some seconds. Returns them in any order."""
        until = None if seconds is None else self._scheduler.now + math.ceil(seconds * 1e3) * 1e-3
        while True:
            for each in files.keys() - self.files.keys():
                self._report(f"the closed descriptor {each} is waited for")
            ready = [each for each in files if each in self.files and self.files[each].is_readable()]
            if ready or (until is not None and self._scheduler.now >= until):
                self._random.shuffle(ready)
                self.selected_at = self._scheduler.now
                return ready
            self.wait(until)

    def wait(self, until: float | None = None) -> None:
        """The launcher waits until something happens, or a time has come."""
        self._woken.clear()
        self._scheduler.wait(self._woken, None if until is None else until - self._scheduler.now)

    def reap(self, process: Process) -> int:
        while process.status is None:
            self.wait()
        if process.pid in self.guarded:
            self._report(f"the guard could kill another group {process.pid}")
        process.is_reaped = True
        return process.status

    def _call_of_launcher(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the launcher, which may be killed before it."""

        def made(*arguments: Any, **keywords: Any) -> Any:
            self._before_call(name)
            if self._launcher.is_dead:
                raise GreenletExit
            return call(*arguments, **keywords)

        return made

    def _popen(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], None] | None = None,
        process_group: int | None = None,
        **_: object,
    ) -> Any:
        if env is None:
            return _Guard(self)
        pid = _LAUNCHER_PID + 1 + len(self.processes)
        process = Process(pid, int(env["SLURM_PROCID"]), process_group or pid if process_group is not None else 0)
        self._begin(process)
        self.processes.append(process)
        if preexec_fn is not None:
            self._forked = process
            preexec_fn()
        return _Running(self, process)

    def _prctl(self, option: int, number: int) -> None:
        assert self._forked is not None
        self._forked.dies_with_launcher = (option, number) == (1, signal.SIGKILL)

    def _open_process(self, pid: int) -> int:
        return self.open_file(next(each for each in self.processes if each.pid == pid))

    def _pipe(self) -> tuple[int, int]:
        pipe = Pipe()
        return self.open_file(pipe), self.open_file(pipe)

    def _close(self, file: int) -> None:
        if self.files.pop(file, None) is None:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _read(self, file: int, most: int) -> bytes:
        pipe = self.files[file]
        if not pipe.is_readable():
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if len(pipe.data) > 1 and self._random.random() < 0.3:
            most = min(most, self._random.randrange(1, len(pipe.data)))
        data, pipe.data = pipe.data[:most], pipe.data[most:]
        if pipe is self.files.get(self._wakeup_file):
            self._take(data[0])
        return data

    def _write(self, file: int, data: bytes) -> None:
        assert isinstance(self.files[file], _Guard)
        if not self.has_guard:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        change, group = data.split()
        (self.guarded.add if change == b"start" else self.guarded.remove)(int(group))

    def _set_wakeup_file(self, file: int) -> int:
        before, self._wakeup_file = self._wakeup_file, file
        return before

    def _read_text(self, path: str) -> str:
        process = next(each for each in self.processes if each.pid == int(path.split("/")[2]))
        if process.is_reaped:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        is_stopped = process.start is not None and process.start.stopped_until > self._scheduler.now
        state = "Z" if process.status is not None else "T" if is_stopped else "S"
        return f"{process.pid} (a) T (b)) {state} {_LAUNCHER_PID} {process.group}"

    def _killpg(self, group: int, number: int) -> None:
        process = self._of_group(group)
        if process is None:
            self._report(f"signal {number} goes to group {group}, whose number the system may have given to others")
            raise ProcessLookupError(errno.ESRCH, "No such process")
        if number == signal.SIGKILL:
            self._kill_group(process)
        elif process.status is None:
            self._send(process, number)

    def _of_group(self, group: int) -> Process | None:
        return next((each for each in self.processes if each.group == group and not each.is_reaped), None)

    def _kill_group(self, process: Process | None) -> None:
        if process is None:
            self._report("the guard kills the group of another program")
            return
        process.has_descendants = False
        process.close_streams()
        if process.status is None:
            delay = 0.001 * self._random.random()
            self._scheduler.at(
                self._scheduler.now + delay, lambda: process.status is None and self._send(process, signal.SIGKILL)
            )


class _Selector(contextlib.AbstractContextManager["_Selector"]):
    """Stands in for `selectors.DefaultSelector`."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._registered: dict[int, Any] = {}

    def __exit__(self, *_: object) -> None:
        self._registered.clear()

    def register(self, file: int, events: int, data: object = None) -> None:
        if file in self._registered:
            raise KeyError(f"{file} is registered already")
        self._registered[file] = SimpleNamespace(fd=file, data=data)

    def unregister(self, file: int) -> None:
        del self._registered[file]

    def select(self, seconds: float | None = None) -> list[tuple[Any, int]]:
        ready = self._system.select(self._registered, seconds)
        return [(self._registered[each], selectors.EVENT_READ) for each in ready]


class _Running:
    """Stands in for the `subprocess.Popen` of a process of the job."""

    def __init__(self, system: System, process: Process) -> None:
        self.pid = process.pid
        self.stdout, self.stderr = (_stream(system, each) for each in process.streams)
        self.wait = lambda: system.reap(process)


def _stream(system: System, pipe: Pipe) -> Any:
    file = system.open_file(pipe)
    return SimpleNamespace(fileno=lambda: file, close=lambda: system._close(file))


class _Guard(contextlib.AbstractContextManager["_Guard"]):
    """Stands in for the `subprocess.Popen` of the guard."""

    def __init__(self, system: System) -> None:
        self._system = system
        file = system.open_file(self)
        self.stdin = SimpleNamespace(fileno=lambda: file)
        self.kill = system._call_of_launcher("kill", system.kill_guard)

    def __exit__(self, *_: object) -> None:
        system = self._system
        if system._launcher.is_dead:
            return
        system._close(self.stdin.fileno())
        for group in system.guarded:
            system._kill_group(system._of_group(group))
