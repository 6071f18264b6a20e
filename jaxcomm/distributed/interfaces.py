"""The network interfaces of this machine, as the kernel reports them."""

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
_IPV6: Final = Path("/proc/net/if_inet6")
_UNFIT: Final = 0x01 | 0x08 | 0x20 | 0x40  # of linux/if_addr.h: temporary, not unique, deprecated, tentative
_GLOBAL_SCOPE: Final = 0


class Interface(NamedTuple):
    """An interface with an IP address.

    Attributes:
      name: such as "eth0".
      address: its first IPv4 address; without one, of its IPv6 addresses one that leads farthest.
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

    @property
    def is_up(self) -> bool:
        """Whether it has a carrier, as far as the kernel knows: it may carry packets."""
        return self.state in ("up", "unknown", "")


class Address(NamedTuple):
    """An IP address and its network: "10.1.0.7", "10.1.0.0/24"."""

    address: str
    network: str


def interfaces() -> list[Interface]:
    """All that have an IP address, without the loopback, in the kernel's order."""
    found = []
    for _, name in socket.if_nameindex():
        at = address_of(name)
        if at is not None and not ipaddress.ip_network(at.network).is_loopback:
            physical = (_FOLDER / name / "device").exists()
            found.append(Interface(name, *at, _mbit(name), _read(name, "operstate"), physical))
    return found


def address_of(interface: str) -> Address | None:
    """The first IPv4 address of an interface; without one an IPv6 address; None: it has neither, or is not there."""
    request = struct.pack("256s", os.fsencode(interface)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(any_socket, each, request)[20:24])
                for each in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            )
        except OSError:  # it has none
            return _ipv6_address(interface)
    return Address(address, str(ipaddress.ip_network(f"{address}/{mask}", strict=False)))


def _ipv6_address(interface: str) -> Address | None:
    """Of several a global one before one of the link, and one that stays before one that does not."""
    try:
        lines = _IPV6.read_bytes().splitlines()
    except OSError:  # the kernel has no IPv6
        return None
    found = []
    for fields in map(bytes.split, lines):
        digits, _, prefix, scope, flags = (field.decode() for field in fields[:5])
        if fields[5] == os.fsencode(interface):
            at = ipaddress.IPv6Interface((bytes.fromhex(digits), int(prefix, 16)))
            rank = int(flags, 16) & _UNFIT, int(scope, 16) != _GLOBAL_SCOPE
            found.append((rank, Address(str(at.ip), str(at.network))))
    return min(found, key=lambda each: each[0], default=(None, None))[1]


def _mbit(name: str) -> int:
    text = _read(name, "speed")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _read(name: str, file: str) -> str:
    try:
        return (_FOLDER / name / file).read_text().strip()
    except OSError:  # speed: of one that is down, or has none
        return ""
