"""The network interfaces of this machine, as the kernel tells them."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

_SIOCGIFADDR: Final = 0x8915  # of linux/sockios.h
_SIOCGIFNETMASK: Final = 0x891B
_FOLDER: Final = Path("/sys/class/net")


class Interface(NamedTuple):
    """An interface with an IPv4 address.

    Attributes:
      name: such as "eth0".
      address: its first.
      network: that the address is in: "10.1.0.0/24".
      mbit: its speed; 0 where the kernel does not say.
      state: "up", "down", or what else the kernel says.
      is_physical: a device of the machine, no bridge, tunnel or pair within it.
    """

    name: str
    address: str
    network: str
    mbit: int
    state: str
    is_physical: bool


def interfaces() -> list[Interface]:
    """All that have an IPv4 address, without the loopback, in the kernel's order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(any_socket, each, request)[20:24])
                    for each in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:  # it has none
                continue
            network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
            if not network.is_loopback:
                physical = (_FOLDER / name / "device").exists()
                found.append(Interface(name, address, str(network), _mbit(name), _read(name, "operstate"), physical))
    return found


def _mbit(name: str) -> int:
    text = _read(name, "speed")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _read(name: str, file: str) -> str:
    try:
        return (_FOLDER / name / file).read_text().strip()
    except OSError:  # speed: of one that is down, or has none
        return ""
