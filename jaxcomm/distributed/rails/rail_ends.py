"""The rails of this process, the rails that two processes have in common, and each rail's share.

A rail is a network interface between hosts, or a fabric of libfabric. Its name is the same on all hosts. JAXCOMM_RAILS
or `jaxcomm.init(rails=…)` names the rails. If neither is set, the rails are detected: the route to the coordinator, and
other hardware interfaces with a known speed. A detected interface connects two hosts if both hosts have an interface of
this name in the same network. A fabric is never detected.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.distributed.connect.addresses import listening_socket, local_address
from jaxcomm.distributed.connect.interfaces import Interface, interfaces
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails.fabrics import is_for_tests
from jaxcomm.distributed.rails.named_rails import FABRIC, MOST_RAILS, NamedRail
from jaxcomm.environment import FABRIC_TESTS, is_on
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom, in_units

ANY_HOST: Final = "192.0.2.1:1"  # an address for documentation (RFC 5737): it has a route, but no packet is sent to it
DEFAULT: Final = ""  # the rail to the coordinator if the user names no rail; hosts may name its interface differently


class FabricEnd(NamedTuple):
    """The endpoint of a fabric rail.

    Attributes:
      provider: libfabric's name of the provider, such as "verbs;ofi_rxm".
      domain: the name of the domain, such as "mlx5_0".
      protocol: libfabric's number of the protocol. It must be the same in all processes.
      address: the endpoint's address, in hexadecimal.
    """

    provider: str
    domain: str
    protocol: int
    address: str


class RailEnd(NamedTuple):
    """A process's end of a rail.

    Attributes:
      name: the rail's name, which is the same in all processes.
      interface: the interface to which sockets are bound; "" if they are not bound to one.
      address: the listener's address; "" while the interface is missing or has no address.
      port: the listener's port; 0 before there is a listener.
      rate: the rail's rate in Mbit/s, or its rate in JAXCOMM_RAILS, which may be relative to other rails; 0 if unknown.
      network: the network in which both ends must be; "" for a rail that the user named.
      is_up: whether the interface exists and has a carrier.
      kind: "tcp", "udp" or "fabric"; "" for the kind that the processes agree on.
      fabric: the endpoint of a fabric rail. `address` and `port` then belong to the rail's TCP connection.
    """

    name: str
    interface: str
    address: str
    port: int
    rate: int
    network: str
    is_up: bool = True
    kind: str = ""
    fabric: FabricEnd | None = None

    def agreed(self, default: str) -> tuple[str, str, int]:
        """Returns what must be the same in all processes: the kind and, for a fabric, the provider and the protocol.

        Args:
          default: the kind of rails for which the user named no kind.
        """
        end = self.fabric
        return (self.kind or default, end.provider if end else "", end.protocol if end else 0)


class MissingInterface(JaxcommError):
    """A rail that the user named is not an interface of this machine, or has no address."""


def own_rails(chosen: Settings, coordinator: str, found: Sequence[Interface] | None = None) -> list[RailEnd]:
    """Returns the rails of this process, at least one.

    Args:
      chosen: the settings.
      coordinator: "host:port" of `jax.distributed`.
      found: the machine's interfaces; None detects them.

    Raises:
      JaxcommError: none of the named rails has an interface here, a named rail is invalid, or the coordinator cannot be
        reached.
    """
    there = {each.name: each for each in (interfaces() if found is None else found)}
    if chosen.rails:
        named = []
        missing: list[MissingInterface] = []
        for each in chosen.rails:
            try:
                if each.kind == FABRIC:
                    named.append(_fabric(each, chosen, coordinator, there))
                else:
                    named.append(_named(each.name, each.rate, there)._replace(kind=each.kind))
            except MissingInterface as error:
                missing.append(error)
                named.append(RailEnd(each.name, each.name, "", 0, each.rate, "", is_up=False, kind=each.kind))
        if len(missing) == len(named):
            raise missing[0]
        for one, other in itertools.combinations(named, 2):
            if one.address and one.address == other.address and FABRIC not in (one.kind, other.kind):
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
    """Returns the names of the job's rails: the first process's rails, then further rails of other processes."""
    return list(dict.fromkeys(rail.name for rails in all_rails for rail in rails))


def check_missing(all_rails: Sequence[Sequence[RailEnd]]) -> None:
    """Raises JaxcommError if all processes lack an address for a rail. The user has then misnamed the rail."""
    there = {rail.name for each in all_rails for rail in each if rail.address}
    for name in names(all_rails):
        if name not in there:
            if name.startswith(f"{FABRIC}:"):
                raise JaxcommError(
                    f"the rail {name!r} can be opened on no host.\n  Cure: name a fabric that `jaxcomm rails` lists."
                )
            raise JaxcommError(
                f"the rail {name!r} is no interface with an IP address on any host.\n"
                "  Cure: name interfaces that `jaxcomm rails` shows, as in JAXCOMM_RAILS=eth0,eth1."
            )


def differing(all_rails: Sequence[Sequence[RailEnd]], default: str) -> dict[str, str]:
    """Returns the rails whose kind, provider or protocol differs between processes, each with the values found.

    Args:
      all_rails: the rails of all processes.
      default: the kind of rails for which the user named no kind.
    """
    found: dict[str, dict[tuple[str, str, int], None]] = {}
    for rail in (rail for rails in all_rails for rail in rails if rail.address or may_appear(rail)):
        found.setdefault(rail.name, {})[rail.agreed(default)] = None
    return {
        name: " and ".join(f"{kind} {provider} {protocol}" if provider else kind for kind, provider, protocol in each)
        for name, each in found.items()
        if len(each) > 1
    }


def kinds(all_rails: Sequence[Sequence[RailEnd]], default: str) -> dict[str, str]:
    """Returns the kind of each rail: "tcp", "udp" or "fabric". Args as for `differing`."""
    return {rail.name: rail.kind or default for rails in reversed(all_rails) for rail in rails}


def common(own: Sequence[RailEnd], peer: Sequence[RailEnd]) -> list[str]:
    """Returns the rails that connect two processes, or may do so later, in the order of `own`.

    `own` must be the rails of the process with the lower number.
    """
    there = {rail.name: rail for rail in peer}
    return [
        rail.name
        for rail in own
        if (other := there.get(rail.name)) is not None
        and all(end.address or may_appear(end) for end in (rail, other))
        and rail.network == other.network
        and (not rail.network or rail.address != other.address)  # a bridge may have the same address on all hosts
    ]


def may_appear(rail: RailEnd) -> bool:
    """Returns whether the rail's interface is missing, or has no address, and may be used once that changes."""
    return not rail.address and not rail.network and rail.kind != FABRIC


def shares(
    lead: Sequence[str], own: Sequence[RailEnd], peer: Sequence[RailEnd], planned: Sequence[SharesFrom]
) -> list[SharesFrom]:
    """Returns the shares of the rails between two processes.

    The shares are as planned. Without a plan they are in proportion to the rails' rates, or equal if a rate is unknown.

    Args:
      lead: the rails that connect the two processes.
      own: all rails of one process.
      peer: all rails of the other process.
      planned: the plan's shares, by this job's names of rails; () without a plan. If no rail in `lead` has a planned
        share, rates are used.
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
    """Returns the rate of each rail's slower end. If one rate is unknown, returns 1 for all rails.

    The kernel does not report the rate of an interface that is down. Such an end counts as no slower than the other
    end, and a rail whose ends are both down counts as the slowest rail.
    """
    ends = {
        name: [rail.rate for rail in (*own, *peer) if rail.name == name and (rail.rate or rail.is_up)] for name in lead
    }
    found = {name: min(each) for name, each in ends.items() if each}
    slowest = min(found.values(), default=0)
    return {name: found.get(name, slowest) for name in lead} if slowest else dict.fromkeys(lead, 1)


def in_words(names: Iterable[str]) -> str:
    """Returns the names of rails, for error texts and log lines."""
    return ", ".join(name or "the route to the coordinator" for name in names) or "none"


def source(own: Sequence[RailEnd], *, is_planned: bool, is_named: bool) -> str:
    """Returns the source of the shares, in words.

    Args:
      own: the rails of this process.
      is_planned: whether a plan has shares.
      is_named: whether JAXCOMM_RAILS has rates.
    """
    if len(own) <= 1:
        return "one rail carries all" if own else "none, as the processes share memory only"
    if is_planned:
        return "those of the plan"
    if unknown := [rail.name or rail.address for rail in own if not rail.rate]:
        return f"equal, as the kernel does not report the speed of {', '.join(unknown)}"
    return "by the rates of JAXCOMM_RAILS" if is_named else "by the interfaces' speeds"


def _fabric(named: NamedRail, chosen: Settings, coordinator: str, there: Mapping[str, Interface]) -> RailEnd:
    """Returns the end of a fabric rail, without its endpoint.

    The rail's TCP connection uses an IP address of this host: the interface's address if the fabric's domain is an
    interface.
    """
    provider, domain = fabric_name(named.name)
    if is_for_tests(provider) and not is_on(FABRIC_TESTS):
        raise JaxcommError(
            f"the rail {named.name!r} is over libfabric's {provider}, which is slower than TCP.\n"
            f"  Cure: name an interface as the rail; or, for tests, set {FABRIC_TESTS}=1."
        )
    interface = there.get(domain)
    if interface is not None:
        return RailEnd(named.name, domain, interface.address, 0, named.rate or interface.mbit, "", kind=FABRIC)
    address = local_address(coordinator, chosen.interface)
    return RailEnd(named.name, chosen.interface, address, 0, named.rate, "", kind=FABRIC)


def fabric_name(rail: str) -> tuple[str, str]:
    """Returns the provider and the domain of a fabric rail such as "fabric:verbs/mlx5_0"; "" if it has no domain."""
    provider, _, domain = rail.removeprefix(f"{FABRIC}:").partition("/")
    return provider, domain


def _named(name: str, rate: int, there: dict[str, Interface]) -> RailEnd:
    if (interface := there.get(name)) is not None:
        return RailEnd(name, name, interface.address, 0, rate or interface.mbit, "", interface.is_up)
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError as error:
        listed = ", ".join(there) or "none"
        raise MissingInterface(
            f"the rail {name!r} is no interface with an IP address; this machine has: {listed}.\n"
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
            "  Cure: name interfaces, with the same names on all hosts, as in JAXCOMM_RAILS=eth0,eth1."
        ) from error
    return RailEnd(name, "", name, 0, rate, "")


def _may_be_found(interface: Interface) -> bool:
    is_of_link = ipaddress.ip_address(interface.address).is_link_local  # link-local networks are the same everywhere
    return interface.is_physical and interface.state == "up" and interface.mbit > 0 and not is_of_link
