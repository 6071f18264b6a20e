"""The local addresses that other hosts reach this process by, and sockets bound to it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import NamedTuple

from jaxcomm.distributed.forks import close_in_children
from jaxcomm.distributed.interfaces import address_of
from jaxcomm.errors import JaxcommError

_SO_RCVBUFFORCE = 33  # of asm-generic/socket.h


class Route(NamedTuple):
    """The route to an address of another machine, or of this one.

    Attributes:
      own: the IP address of this machine from which packets to it come.
      peer: "host:port" of the address itself.
      is_local: it is this machine's.
    """

    own: str
    peer: str
    is_local: bool


def routes(coordinator: str) -> list[Route]:
    """The routes to the addresses of a name, IPv4 and IPv6, in the order in which they are to be tried; one at least.

    Args:
      coordinator: "host:port", as `jax.distributed` takes it.

    Raises:
      JaxcommError: it has no address, or there is no route to any.
    """
    host, _, port = coordinator.rpartition(":")
    found: dict[Route, None] = {}
    failure: Exception | None = None
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except (OSError, ValueError) as error:
        addresses, failure = [], error
    for family, kind, _, _, address in addresses:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram socket: sends nothing, only chooses the route
                own: str = probe.getsockname()[0]
        except OSError as error:
            failure = error
            continue
        is_local = own == address[0] or ipaddress.ip_address(own).is_loopback
        found[Route(own, f"[{address[0]}]:{port}", is_local)] = None
    if not found:
        why = failure.strerror if isinstance(failure, OSError) else "it is no host and port, such as 10.0.0.1:1234"
        raise JaxcommError(
            f"no local address reaches the coordinator {coordinator!r}: {why}.\n"
            "  Cure: JAXCOMM_INTERFACE=eth0, or what the interface between the hosts is called."
        ) from failure
    return [*found]


def local_address(coordinator: str, interface: str) -> str:
    """The IP address of an interface, or, for "", of the one from which the coordinator is reached.

    Args:
      coordinator: "host:port", as `jax.distributed` takes it.
      interface: such as "eth1".

    Raises:
      JaxcommError: there is no such interface, it has no IP address, or the coordinator has no address.
    """
    if not interface:
        return routes(coordinator)[0].own
    found = address_of(interface)
    if found is None:
        names = [name for _, name in socket.if_nameindex()]
        why = "No such device" if interface not in names else "`ip address` shows none"
        raise JaxcommError(
            f"JAXCOMM_INTERFACE is {interface!r}, which has no IP address here: {why}.\n"
            f"  Cure: set it to one of {', '.join(names)}."
        )
    return found.address


def bound_socket(address: str, interface: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket of the address's family, TCP's by default, bound to the interface unless that is "".

    Raises:
      JaxcommError: the process may not bind it.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(address.partition("%")[0]).version == 6 else socket.AF_INET
    made = close_in_children(socket.socket(family, kind))
    if interface:
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface))
        except OSError as error:
            made.close()
            cure = (
                "the right CAP_NET_RAW, or a kernel from 5.7 on, or neither JAXCOMM_INTERFACE nor JAXCOMM_RAILS"
                if error.errno == errno.EPERM
                else "an interface that `ip link` shows"
            )
            raise JaxcommError(
                f"a socket cannot be bound to the interface {interface!r}: {error.strerror}.\n  Cure: {cure}."
            ) from error
    return made


def make_room(made: socket.socket, room: int) -> None:
    """Sets the kernel's receive buffer in bytes, or the largest that this process may ask for."""
    for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, option, room)
            break


def listening_socket(address: str, interface: str) -> socket.socket:
    """As `bound_socket`, bound to a free port of the address, too.

    Raises:
      JaxcommError: the process may not bind it, or the address is not this machine's.
    """
    made = bound_socket(address, interface)
    try:
        made.bind((address, 0))
    except OSError as error:
        made.close()
        on = f" of the interface {interface}" if interface else ""
        raise JaxcommError(
            f"this process cannot listen at {address}{on}: {error.strerror}.\n"
            "  Cure: see with `ip address` whether this machine still has that address, and whether it is up."
        ) from error
    return made
