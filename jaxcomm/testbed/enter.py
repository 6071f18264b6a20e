"""Runs a command on a testbed's host, in the namespaces of the host's processes. Root runs this file as a program.

    JAXCOMM_TESTBED=1a2b3c4d JAXCOMM_HOST=a python enter.py FOLDER COMMAND...     # reads FOLDER/1a2b3c4d.hosts/a.pid

A Linux process cannot enter another PID namespace, but its children can. So this process starts the command as a child,
waits, and ends with the command's status or signal. This process ignores SIGINT, SIGTERM and SIGHUP, because the
command receives them itself.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

_NAMESPACES = ("net", "uts", "ipc", "pid_for_children", "mnt")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_FAILED = 125

_libc = ctypes.CDLL(None, use_errno=True)


def main(folder: str, *command: str) -> None:
    try:
        host = Path(folder, f"{os.environ['JAXCOMM_TESTBED']}.hosts", f"{os.environ['JAXCOMM_HOST']}.pid")
        _enter(int(host.read_text()))
        for each in _SIGNALS:
            if signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, lambda *_: None)  # `exec` resets this handler to the default for the command
        running = subprocess.Popen(command, preexec_fn=_end_with_parent)
    except OSError as error:
        print(f"testbed: {command[0]} cannot run on its host: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    status = running.wait()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no second core file: the command has written its own
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _enter(process: int) -> None:
    folder = os.getcwd()
    namespaces = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _NAMESPACES]
    for namespace in namespaces:
        if _libc.setns(namespace, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(namespace)
    os.chdir(folder)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
