"""Two hosts of this machine, each a network namespace with interfaces that lead to the other one. They need root.

with two_hosts({"eth0": 4, "eth1": 6}) as hosts:
    hosts.ip(0, "link", "set", "eth1", "down")
    reports = hosts.run(JOB, "a:5555")    # what each process printed with `report(...)`, and its whole output
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

NAMES = ("a", "b")
_RUN_S = 120  # bounds each process
# Does what `ip netns exec` does with files in /etc/netns, without writing there.
_ENTER = 'mount --bind "$0" /etc/hosts && echo "$1" > /proc/sys/kernel/hostname && shift && exec "$@"'


class Ended(NamedTuple):
    """The exit status of a process, and what it printed."""

    status: int
    output: str


class Hosts(NamedTuple):
    """Hosts 0 and 1, whose names are a and b: their namespaces, and the files that are their /etc/hosts."""

    namespaces: tuple[str, str]
    files: tuple[Path, Path]

    def ip(self, host: int, *words: str) -> None:
        """Runs an `ip` command on a host."""
        subprocess.run(["ip", "-n", self.namespaces[host], *words], check=True)

    def start(self, host: int, script: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a Python script, given as text, on a host that shares no memory with the other one."""
        command = [*("ip", "netns", "exec", self.namespaces[host], "unshare", "--uts", "--mount", "sh", "-c", _ENTER)]
        command += [str(self.files[host]), NAMES[host], sys.executable, "-c", script, *words]
        own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAXCOMM_HOST": NAMES[host], **environment}
        return subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, script: str, *words: str, **environment: str) -> list[Ended]:
        """Runs a script with each host's number and these words as arguments, on both, until both have ended."""
        return ended([self.start(host, script, str(host), *words, **environment) for host in (0, 1)])


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """The processes once they have ended; those that take too long are killed."""
    try:
        outputs = [process.communicate(timeout=_RUN_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@contextmanager
def two_hosts(interfaces: Mapping[str, int]) -> Iterator[Hosts]:
    """Hosts with these interfaces, each 4 or 6: IPv4 addresses 10.77.RAIL.HOST, or IPv6 addresses fd77:RAIL::HOST only.

    Each host's own name leads to 127.0.1.1, and the other's to its address on the first interface.
    """
    made = tuple(f"jaxcomm-{os.getpid()}-{name}" for name in NAMES)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="jaxcomm-hosts-"))
        stack.callback(shutil.rmtree, folder)
        for namespace in made:
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", namespace], check=True)
        hosts = Hosts((made[0], made[1]), (folder / "a", folder / "b"))
        for rail, (name, version) in enumerate(interfaces.items()):
            ends = ["name", name, "netns", made[0], "type", "veth", "peer", "name", name, "netns", made[1]]
            subprocess.run(["ip", "link", "add", *ends], check=True)
            for host in (0, 1):
                at_once = ["nodad"] if version == 6 else []
                hosts.ip(host, "address", "add", address(rail, version, host), "dev", name, *at_once)
                hosts.ip(host, "link", "set", name, "up")
        for host, file in enumerate(hosts.files):
            hosts.ip(host, "link", "set", "lo", "up")
            other = 1 - host
            there = address(0, next(iter(interfaces.values())), other).partition("/")[0]
            file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {NAMES[host]}\n{there} {NAMES[other]}\n")
        yield hosts


def address(rail: int, version: int, host: int) -> str:
    """The address of a host on an interface, by its number, with the length of its network's prefix."""
    return f"10.77.{rail + 1}.{host + 1}/24" if version == 4 else f"fd77:{rail + 1}::{host + 1}/64"
