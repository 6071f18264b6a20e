"""The hosts of a testbed. Like a machine, a host has its own processes, name, boot id, shared memory and /etc/hosts.

A host exists until its first process ends. The first process ends when the testbed's owner ends, even if the owner is
killed. The kernel then kills all other processes of the host.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jaxcomm import files
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import state
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command, within

NAMESPACES: Final = ("unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_TIMEOUT_S: Final = 20
_READY: Final = "ready\n"
# `unshare` enters all namespaces of the host except the PID namespace, which only the child of `unshare` enters.
_START: Final = f'echo $$ > "$2/$1.pid" && exec {" ".join(NAMESPACES)} sh -c "$0" "$@"'
# The first process ends when its standard input closes. Meanwhile, the shell's `wait` also reaps orphans.
_FIRST: Final = (
    'set -e; echo "$0" > /proc/sys/kernel/hostname; mount --bind "$1/hosts" /etc/hosts; '
    'mount --bind "$1/$0.boot_id" /proc/sys/kernel/random/boot_id; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; '
    "echo ready; exec 3<&0; cat <&3 & wait"
)


def contents(layout: Layout) -> dict[Path, str]:
    """Returns the content of every file that the hosts need, by path."""
    folder = state.hosts_folder(layout.id)
    boots = {folder / f"{host.name}.boot_id": f"{layout.boot_id(host.name)}\n" for host in layout.testbed.hosts}
    return {folder / "hosts": _hosts_text(layout)} | boots


def first_process(layout: Layout, host: str) -> Command:
    """Returns the command of a host's first process. The process prints "ready" when the host is ready.

    The process ends when its stdin ends.
    """
    folder = str(state.hosts_folder(layout.id))
    return within(layout.namespace(host), "sh", "-c", _START, _FIRST, host, folder)


@contextlib.contextmanager
def running(layout: Layout) -> Iterator[None]:
    """Runs the hosts within the block. All processes of the hosts end with the block.

    Raises:
      JaxcommError: the first process of a host failed.
    """
    files.make_folder(state.hosts_folder(layout.id))
    for path, text in contents(layout).items():
        files.write(path, text)
    with contextlib.ExitStack() as stack:
        for host in layout.testbed.hosts:
            stack.enter_context(_host(first_process(layout, host.name)))
        yield


@contextlib.contextmanager
def _host(command: Command) -> Iterator[None]:
    pipe = subprocess.PIPE
    first = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert first.stdin is not None and first.stdout is not None
    try:
        if (line := first.stdout.readline()) != _READY:
            problem = (line + first.stdout.read()).strip()
            raise JaxcommError(
                f"`{' '.join(command)}` failed: {problem}.\n"
                "  Cure: see `jaxcomm testbed check`; nothing is left of the testbed."
            )
        yield
    finally:
        first.stdin.close()
        try:
            first.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            first.kill()  # `--kill-child` then kills the host's first process, too
            first.wait()
        first.stdout.close()


def _hosts_text(layout: Layout) -> str:
    """Returns the text of /etc/hosts, equal on all hosts: each host's name has the host's address in the first rail."""
    rail = layout.testbed.rails[0].name
    lines = [f"{layout.address(host.name, rail)} {host.name}" for host in layout.testbed.hosts]
    return "\n".join(["127.0.0.1 localhost", *lines, ""])
