"""The route by which other hosts reach this process if the user names no interface. All processes choose it together.

A machine's name may resolve to 127.0.1.1 on that machine (the default on Debian and Ubuntu), or to another address
family than on other machines. So a process on the coordinator's host uses the route to a process on another host, not
the route to the coordinator, and all processes use one address family.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence

from jaxcomm.distributed.connect import stages
from jaxcomm.distributed.connect.addresses import Route, local_address, routes
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails.named_rails import FABRIC
from jaxcomm.errors import JaxcommError


def agreed_route(process: int, others: Iterable[int], chosen: Settings, coordinator: str, deadline: float) -> str:
    """Returns the "host:port" of the route's end, which is the coordinator or a process on another host.

    Args:
      process: the number of this process.
      others: the other processes of the job, which also call this.
      chosen: the settings.
      coordinator: "host:port" of `jax.distributed`.
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: the coordinator has no address, the other hosts have no common address family, or no other host
        can be reached.
    """
    has_fabric = any(rail.kind == FABRIC for rail in chosen.rails)  # its TCP connection uses the route
    named = chosen.interface or (chosen.rails and not has_fabric) or chosen.transport == "shm"
    known = [] if named else routes(coordinator)
    is_here = any(route.is_local for route in known)
    own = [] if is_here else [route.own for route in known]
    if chosen.interface:
        own = [address for address in [local_address(coordinator, chosen.interface)] if not _is_loopback(address)]
    stages.publish("route", process, json.dumps(own))
    published = stages.lookup_all("route", others, deadline, "arrived")
    remote = {each: found for each, text in published.items() if (found := _addresses(each, text))}
    remote |= {process: own} if own else {}
    if named or not remote:
        return coordinator
    version = _common_version(remote)
    if not is_here:
        return next(route.peer for route in known if _version(route.own) == version)
    return _route_to_others(remote, version, coordinator)


def _route_to_others(remote: Mapping[int, Sequence[str]], version: int, coordinator: str) -> str:
    ends = {
        other: f"[{address}]:1"
        for other, found in sorted(remote.items())
        for address in found
        if _version(address) == version
    }
    for end in ends.values():
        try:
            found: list[Route] = [route for route in routes(end) if not route.is_local]
        except JaxcommError:
            continue
        if found:
            return end
    listed = ", ".join(f"process {other} at {end[1:-3]}" for other, end in ends.items())
    raise JaxcommError(
        f"no address of this host leads to {listed}; its route to the coordinator {coordinator!r} stays on the host.\n"
        "  Cure: JAXCOMM_INTERFACE=eth0, or the name of the interface between the hosts."
    )


def _common_version(remote: Mapping[int, Sequence[str]]) -> int:
    """Returns an IP version, 4 or 6, that all these processes have.

    If all have both versions, the first address of the process with the lowest number decides.
    """
    lowest = remote[min(remote)]
    for address in lowest:
        if all(any(_version(each) == _version(address) for each in found) for found in remote.values()):
            return _version(address)
    listed = "; ".join(f"process {other} has {', '.join(found)}" for other, found in sorted(remote.items()))
    raise JaxcommError(
        f"the hosts reach the coordinator over IPv4 and IPv6, and have no address family in common: {listed}.\n"
        "  Cure: give the coordinator as an address that all hosts reach, or set JAXCOMM_INTERFACE everywhere."
    )


def _addresses(process: int, text: str) -> list[str]:
    """Returns the addresses that a process has published. Checks them, as other programs can write to the store."""
    try:
        found = json.loads(text)
        return [str(ipaddress.ip_address(each)) for each in found]
    except (ValueError, TypeError) as error:
        raise JaxcommError(
            f"process {process} published {text[:80]!r}, which is no list of addresses.\n"
            "  Cure: the same version of jaxcomm in all processes."
        ) from error


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
