"""Requirements of a testbed: root, programs and kernel features. Checking them changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from jaxcomm.errors import JaxcommError
from jaxcomm.testbed.hosts import NAMESPACES
from jaxcomm.testbed.schema import Testbed

_TIMEOUT_S: Final = 20
_PACKAGES: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "sysctl": "procps",
    "unshare": "util-linux",
    "mount": "mount",
    "nft": "nftables",
}
_PAIR: Final = "ip link add one type veth peer name two"
_ABILITIES: Final = {
    "network namespaces": "true",
    "hosts of their own (namespaces of processes, mounts, names and shared memory)": (
        f"{' '.join(NAMESPACES)} mount --bind /etc/hosts /proc/sys/kernel/random/boot_id"
    ),
    "bridges": "ip link add three type bridge",
    "pairs of interfaces (veth)": _PAIR,
    "shaping (HTB)": f"{_PAIR} && tc qdisc add dev one root handle 1: htb default 1 && "
    "tc class add dev one parent 1: classid 1:1 htb rate 1mbit && tc qdisc add dev one parent 1:1 bfifo limit 10000",
}
_LOSS: Final = (
    f"{_PAIR} && nft 'add table netdev t; "
    'add chain netdev t c { type filter hook ingress device "one" priority 0; policy accept; }; '
    "add rule netdev t c numgen random mod 100 < 1 counter drop'"
)
_TAP: Final = "ip tuntap add dev one mode tap"
_BY_NFT: Final = ("one-way", "reset", "no-udp")
_CONGESTION_CONTROLS: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


class Requirement(NamedTuple):
    """A requirement of a testbed, and its cure; the cure is "" if the machine meets the requirement."""

    name: str
    cure: str


def requirements(testbed: Testbed | None = None) -> list[Requirement]:
    """Returns the requirements of the testbed, or of all testbeds. Requirements that the machine lacks have a cure.

    Kernel features are tried in a temporary namespace. They are not tried if root or a program is missing.
    """
    with_switch = testbed is None or testbed.switch is not None
    with_loss = testbed is None or any(cut.kind in _BY_NFT for cut in testbed.cuts)
    with_loss |= testbed is not None and testbed.switch is None and bool(testbed.packet_loss)
    tools = {tool: package for tool, package in _PACKAGES.items() if with_loss or tool != "nft"}
    linux = sys.platform == "linux"
    root = linux and os.geteuid() == 0
    found = [
        Requirement("Linux", "" if linux else "use a Linux machine"),
        Requirement("root", "" if root else "run it as root, for example by sudo"),
        *(
            Requirement(f"the program {tool}", "" if shutil.which(tool) else f"apt-get install {package}")
            for tool, package in tools.items()
        ),
    ]
    if any(requirement.cure for requirement in found):
        return found
    abilities = _ABILITIES | ({"random loss (nftables, netdev)": _LOSS} if with_loss else {})
    abilities |= {"TAP devices": _TAP} if with_switch else {}
    found += [Requirement(name, _try(script)) for name, script in abilities.items()]
    control = testbed.congestion_control if testbed else "cubic"
    there = control in _CONGESTION_CONTROLS.read_text().split()
    found.append(Requirement(f"TCP's {control}", "" if there else f"modprobe tcp_{control}"))
    return found


def check(testbed: Testbed) -> None:
    """Checks that this machine can run a testbed.

    Raises:
      JaxcommError: the machine does not meet a requirement; the text names the first such requirement and its cure.
    """
    for name, cure in requirements(testbed):
        if cure:
            raise JaxcommError(f"this testbed needs {name}, which this machine lacks.\n  Cure: {cure}.")


def _try(script: str) -> str:
    try:
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"use another kernel; this one has not answered after {_TIMEOUT_S} s"
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"use a kernel that has it; this one says: {message}" if done.returncode else ""
