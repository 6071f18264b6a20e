"""The network interfaces of this machine, as the kernel reports them."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

_SIOCGIFADDR: Final = 0x8915  # from linux/sockios.h
_SIOCGIFNETMASK: Final = 0x891B
_FOLDER: Final = Path("/sys/class/net")
_IPV6: Final = Path("/proc/net/if_inet6")
_UNFIT: Final = 0x01 | 0x08 | 0x20 | 0x40  # from linux/if_addr.h: temporary, not unique, deprecated, tentative
_GLOBAL_SCOPE: Final = 0


class Interface(NamedTuple):
    """An interface with an IP address.

    Attributes:
      name: the interface's name, such as "eth0".
      address: the interface's first IPv4 address, or its best IPv6 address if it has no IPv4 address.
      network: the network of the address, such as "10.1.0.0/24".
      mbit: the interface's speed in Mbit/s; 0 if the kernel does not report the speed.
      state: "up", "down", or another state from the kernel.
      is_physical: whether the interface is hardware, not a bridge, tunnel or veth pair.
    """

    name: str
    address: str
    network: str
    mbit: int
    state: str
    is_physical: bool

    @property
    def is_up(self) -> bool:
        """Whether the interface may carry packets, as far as the kernel knows."""
        return self.state in ("up", "unknown", "")


class Address(NamedTuple):
    """An IP address and its network: "10.1.0.7", "10.1.0.0/24"."""

    address: str
    network: str


def interfaces() -> list[Interface]:
    """Returns all interfaces with an IP address except the loopback, in the kernel's order."""
    found = []
    for _, name in socket.if_nameindex():
        at = address_of(name)
        if at is not None and not ipaddress.ip_network(at.network).is_loopback:
            physical = (_FOLDER / name / "device").exists()
            found.append(Interface(name, *at, _mbit(name), _read(name, "operstate"), physical))
    return found


def address_of(interface: str) -> Address | None:
    """Returns the first IPv4 address of an interface, or else an IPv6 address; None if it has no address."""
    request = struct.pack("256s", os.fsencode(interface)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(any_socket, each, request)[20:24])
                for each in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            )
        except OSError:  # no IPv4 address
            return _ipv6_address(interface)
    return Address(address, str(ipaddress.ip_network(f"{address}/{mask}", strict=False)))


def _ipv6_address(interface: str) -> Address | None:
    """Returns an IPv6 address. Prefers addresses without `_UNFIT` flags and, among these, global addresses."""
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
    except OSError:  # for example, an interface that is down has no speed
        return ""
