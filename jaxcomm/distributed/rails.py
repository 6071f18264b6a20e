"""The rails of this process, those that it has in common with another one, and what each of them carries.

A rail is a network interface between hosts, by a name that is the same on all of them. JAXCOMM_RAILS or
`jaxcomm.init(rails=…)` names them; else they are found: the way to the coordinator, and the other devices of the
machine whose speed the kernel knows, where both hosts have one of the same name in the same network.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from jaxcomm.distributed.addresses import listening_socket, local_address
from jaxcomm.distributed.interfaces import Interface, interfaces
from jaxcomm.distributed.settings import MOST_RAILS, Settings
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom, in_units

ANY_HOST: Final = "192.0.2.1:1"  # for documents only, RFC 5737: nothing is sent there, but there is a way to it
DEFAULT: Final = ""  # the name of the one rail, if the user names none: hosts may call its interface differently


class RailEnd(NamedTuple):
    """One rail, as a process has it.

    Attributes:
      name: the same in all processes.
      interface: that its sockets are bound to; "" for none.
      address: of its listener; "" where the interface is missing, or has no address.
      port: of its listener; 0 before there is one.
      rate: in Mbit/s, or what JAXCOMM_RAILS says, which may be in relation to the others only; 0: unknown.
      network: that its other end must be in, too; "" for one that the user named.
      is_up: its interface is there and has a carrier.
    """

    name: str
    interface: str
    address: str
    port: int
    rate: int
    network: str
    is_up: bool = True


class MissingInterface(JaxcommError):
    """A rail that the user named is no interface of this machine, or has no address."""


def own_rails(chosen: Settings, coordinator: str, found: Sequence[Interface] | None = None) -> list[RailEnd]:
    """The rails of this process; one at least.

    Args:
      chosen: of the settings.
      coordinator: "host:port" of `jax.distributed`.
      found: the machine's interfaces; None looks.

    Raises:
      JaxcommError: a rail has no interface here, or the coordinator cannot be reached.
    """
    there = {each.name: each for each in (interfaces() if found is None else found)}
    if chosen.rails:
        named = []
        missing: list[MissingInterface] = []
        for each in chosen.rails:
            try:
                named.append(_named(each.name, each.rate, there))
            except MissingInterface as error:
                missing.append(error)
                named.append(RailEnd(each.name, each.name, "", 0, each.rate, "", is_up=False))
        if len(missing) == len(named):
            raise missing[0]
        for one, other in itertools.combinations(named, 2):
            if one.address and one.address == other.address:
                raise JaxcommError(
                    f"the rails {one.name!r} and {other.name!r} are the same interface, at {one.address}.\n"
                    "  Cure: name one of them in JAXCOMM_RAILS."
                )
        return named
    address = local_address(coordinator, chosen.interface)
    default = next((each for each in there.values() if each.address == address), None)
    first = RailEnd(DEFAULT, chosen.interface, address, 0, default.mbit if default else 0, "")
    if chosen.interface or default is None or not _may_be_found(default):
        return [first]
    others = [each for each in there.values() if each is not default and _may_be_found(each)]
    ends = (RailEnd(each.name, each.name, each.address, 0, each.mbit, each.network) for each in others)
    return [first, *itertools.islice(ends, MOST_RAILS - 1)]


def names(all_rails: Sequence[Sequence[RailEnd]]) -> list[str]:
    """The rails of the job: those of the first process, then what others have beside them."""
    return list(dict.fromkeys(rail.name for rails in all_rails for rail in rails))


def check_missing(all_rails: Sequence[Sequence[RailEnd]]) -> None:
    """Raises JaxcommError if a rail has no address in any process: it was named wrong."""
    there = {rail.name for each in all_rails for rail in each if rail.address}
    for name in names(all_rails):
        if name not in there:
            raise JaxcommError(
                f"the rail {name!r} is no interface with an IP address on any host.\n"
                "  Cure: name interfaces that `jaxcomm rails` shows, as in JAXCOMM_RAILS=eth0,eth1."
            )


def common(own: Sequence[RailEnd], peer: Sequence[RailEnd]) -> list[str]:
    """The rails that lead from one process to another, in the order of the lower one; the same for both."""
    there = {rail.name: rail for rail in peer}
    return [
        rail.name
        for rail in own
        if (other := there.get(rail.name)) is not None
        and rail.address
        and other.address
        and rail.network == other.network
        and (not rail.network or rail.address != other.address)  # such as those of bridges, alike on all machines
    ]


def shares(
    lead: Sequence[str], own: Sequence[RailEnd], peer: Sequence[RailEnd], planned: Sequence[SharesFrom]
) -> list[SharesFrom]:
    """Shares of the rails between two processes: as planned, by their rates, or, where one is unknown, even.

    Args:
      lead: the rails that lead from one to the other.
      own: all of one process.
      peer: all of the other.
      planned: the plan's shares; () for none. Where it gives none of these rails a share, their rates count.
    """
    by_rate = rates(lead, own, peer)
    ranges = []
    has_share = any(each.get(name) for _, each in planned for name in lead)
    for low, each in planned if has_share else [SharesFrom(0, by_rate)]:
        weights = [each.get(name, 0) for name in lead]
        units = in_units(weights if any(weights) else [*by_rate.values()])
        ranges.append(SharesFrom(low, dict(zip(lead, units, strict=True))))
    return ranges


def rates(lead: Sequence[str], own: Sequence[RailEnd], peer: Sequence[RailEnd]) -> dict[str, int]:
    """The rate of each rail between two processes, of its slower end; where one is unknown, 1 for all."""
    found = {name: min(rail.rate for rail in (*own, *peer) if rail.name == name) for name in lead}
    return found if all(found.values()) else dict.fromkeys(lead, 1)


def is_planned(own: Sequence[RailEnd], planned: Sequence[SharesFrom]) -> bool:
    """Whether a plan gives a rail of this process a share."""
    return any(each.get(rail.name) for _, each in planned for rail in own)


def source(own: Sequence[RailEnd], planned: Sequence[SharesFrom], *, is_named: bool) -> str:
    """Where the shares come from, in words.

    Args:
      own: the rails of this process.
      planned: the plan's shares; () for none.
      is_named: JAXCOMM_RAILS gives rates.
    """
    if len(own) <= 1:
        return "one rail carries all" if own else "none, as the processes share memory only"
    if is_planned(own, planned):
        return "those of the plan"
    others = ", ".join(dict.fromkeys(name for _, each in planned for name in each))
    but = f"the plan's rails, {others}, are none of these; so " if others else ""
    if unknown := [rail.name or rail.address for rail in own if not rail.rate]:
        return f"{but}alike, as the kernel does not say how fast {', '.join(unknown)} is"
    return but + ("by the rates of JAXCOMM_RAILS" if is_named else "by the interfaces' speeds")


def _named(name: str, rate: int, there: dict[str, Interface]) -> RailEnd:
    if (interface := there.get(name)) is not None:
        return RailEnd(name, name, interface.address, 0, rate or interface.mbit, "", interface.is_up)
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError as error:
        listed = ", ".join(there) or "none"
        raise MissingInterface(
            f"the rail {name!r} is no interface with an IP address; here are: {listed}.\n"
            "  Cure: name interfaces that `jaxcomm rails` shows on all hosts, as in JAXCOMM_RAILS=eth0,eth1."
        ) from error
    if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
        raise JaxcommError(
            f"the rail {name!r} is no machine's address.\n  Cure: name an interface, as in JAXCOMM_RAILS=eth0,eth1."
        )
    try:
        listening_socket(name, "").close()
    except JaxcommError as error:
        listed = ", ".join(f"{each.name} {each.address}" for each in there.values()) or "none"
        raise JaxcommError(
            f"the rail {name!r} is no address of this machine; its interfaces are: {listed}.\n"
            "  Cure: name interfaces, which are called alike on all hosts, as in JAXCOMM_RAILS=eth0,eth1."
        ) from error
    return RailEnd(name, "", name, 0, rate, "")


def _may_be_found(interface: Interface) -> bool:
    is_of_link = ipaddress.ip_address(interface.address).is_link_local  # such networks are alike on all machines
    return interface.is_physical and interface.state == "up" and interface.mbit > 0 and not is_of_link
