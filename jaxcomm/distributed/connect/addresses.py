"""The local addresses at which other hosts reach this process, and sockets bound to them."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import NamedTuple

from jaxcomm.distributed.connect.interfaces import address_of
from jaxcomm.distributed.forks import close_in_children
from jaxcomm.errors import JaxcommError

_SO_RCVBUFFORCE = 33  # from asm-generic/socket.h


class Route(NamedTuple):
    """The route to an address of another machine, or of this machine.

    Attributes:
      own: the IP address from which packets to `peer` are sent.
      peer: "host:port" of the address.
      is_local: whether the address is this machine's.
    """

    own: str
    peer: str
    is_local: bool


def routes(coordinator: str) -> list[Route]:
    """Returns the routes to the coordinator's IPv4 and IPv6 addresses, in the order to try them. At least one exists.

    Args:
      coordinator: "host:port", as `jax.distributed` takes it.

    Raises:
      JaxcommError: the name has no address, or no address has a route.
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
                probe.connect(address)  # sends nothing on a datagram socket, but makes the kernel choose the route
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
            "  Cure: JAXCOMM_INTERFACE=eth0, or the name of the interface between the hosts."
        ) from failure
    return [*found]


def local_address(coordinator: str, interface: str) -> str:
    """Returns the IP address of an interface, or, for "", the address from which the coordinator is reached.

    Args:
      coordinator: "host:port", as `jax.distributed` takes it.
      interface: the interface's name, such as "eth1", or "".

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
    """Returns a socket of the address's family, TCP by default, bound to the interface unless that is "".

    Raises:
      JaxcommError: the socket cannot be bound.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(address.partition("%")[0]).version == 6 else socket.AF_INET
    made = close_in_children(socket.socket(family, kind))
    if interface:
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface))
        except OSError as error:
            made.close()
            cure = (
                "use Linux 5.7 or later, or the capability CAP_NET_RAW, or unset JAXCOMM_INTERFACE and JAXCOMM_RAILS"
                if error.errno == errno.EPERM
                else "name an interface that `ip link` shows"
            )
            raise JaxcommError(
                f"a socket cannot be bound to the interface {interface!r}: {error.strerror}.\n  Cure: {cure}."
            ) from error
    return made


def make_room(made: socket.socket, room: int) -> None:
    """Sets a socket's receive buffer to `room` bytes, or to the largest size that this process may set."""
    for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, option, room)
            break


def listening_socket(address: str, interface: str) -> socket.socket:
    """Returns a `bound_socket` that is also bound to a free port of the address.

    Raises:
      JaxcommError: the socket cannot be bound, or the address is not this machine's.
    """
    made = bound_socket(address, interface)
    try:
        made.bind((address, 0))
    except OSError as error:
        made.close()
        on = f" of the interface {interface}" if interface else ""
        raise JaxcommError(
            f"this process cannot listen at {address}{on}: {error.strerror}.\n"
            "  Cure: check with `ip address` whether this machine still has that address, and its interface is up."
        ) from error
    return made
