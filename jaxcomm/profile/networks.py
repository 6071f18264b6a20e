"""Copies the hosts, racks and NICs of one profile into another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxcomm.errors import ProfileError
from jaxcomm.files import mistake
from jaxcomm.profile.files import validate
from jaxcomm.profile.schema import MAX_RANKS, Profile


def on_hosts(host: Profile, hosts: int) -> Profile:
    """The profile of several hosts that are all like the host that `host` describes.

    Args:
      host: a profile whose `topology` has one host, or one rack.
      hosts: the number of hosts, at least 1.

    Raises:
      ProfileError: the profile does not describe exactly one host, has arrivals or rails, or gives too many ranks.
    """
    ranks = host.ranks * hosts
    if not _is_host(host) or host.arrivals or host.rails or not host.ranks <= ranks <= MAX_RANKS:
        problem = f"does not describe one host, {hosts} of which have at most {MAX_RANKS} ranks"
        cure = "give `nvidia-smi topo -m` or NCCL's topology, and 1 host or more"
        raise ProfileError(mistake(host.provenance.source, problem, cure))
    document = host.model_dump() | {
        "ranks": ranks,
        "topology": _repeated(host, [rank // host.ranks for rank in range(ranks)]),
    }
    document["provenance"]["source"] = f"{host.provenance.source}, {hosts} such hosts"
    return validate(document, host.provenance.source)


def with_network(profile: Profile, found: Profile) -> Profile:
    """The profile with the hosts, racks or NICs of another profile in place of its own.

    Timed collectives stay, but timed schedules and trials are left out.

    Args:
      profile: any profile.
      found: one of three kinds of profile: of one host that all hosts of `profile` resemble, of the same ranks, or with
        one rank for each host of `profile`. In the last kind, ranks match hosts by name if all names agree, otherwise
        by order.

    Raises:
      ProfileError: `found` has no hosts or racks, or describes other ranks or hosts.
    """
    fields = _hosts_like(profile, found) if _is_host(found) else _network(profile, found)
    source = f"{profile.provenance.source}, network of {found.provenance.source}"[:4096]
    provenance = profile.provenance.model_dump() | {"source": source}
    document = profile.model_dump() | fields | {"provenance": provenance, "timed_schedules": None, "trials": []}
    return validate(document, profile.provenance.source)


def _is_host(profile: Profile) -> bool:
    """Whether the profile describes a single host: all ranks are on one host or in one rack.

    A rack can stand for a single host: if a host's GPUs form several groups, they are described as hosts of one rack.
    """
    return profile.topology is not None and not any(profile.topology.racks or profile.topology.hosts)


def _repeated(host: Profile, home: Sequence[int]) -> dict[str, Any]:
    """The topology of ranks on hosts that are all like `host`; `home[r]` is the host of rank r."""
    topology = host.topology
    assert topology is not None
    if not topology.racks:
        return topology.model_dump() | {"hosts": home}
    seen: Counter[int] = Counter()
    number: dict[tuple[int, int], int] = {}
    hosts = []
    for rack in home:
        hosts.append(number.setdefault((rack, topology.hosts[seen[rack]]), len(number)))
        seen[rack] += 1
    racks = [rack for rack, _ in number]
    return topology.model_dump() | {"hosts": hosts, "racks": racks, "uplinks": topology.uplinks * len({*racks})}


def _hosts_like(profile: Profile, host: Profile) -> dict[str, Any]:
    home = _hosts(profile) or [rank // host.ranks for rank in range(profile.ranks)]
    other = next((number for number, ranks in Counter(home).items() if ranks != host.ranks), None)
    if other is not None:
        problem = f"has {home.count(other or 0)} ranks on host {other}; {host.provenance.source} describes {host.ranks}"
        raise ProfileError(mistake(profile.provenance.source, problem, "describe a host of as many ranks"))
    if host.topology and host.topology.racks and len(profile.racks) > 1:
        problem = f"has {len(profile.racks)} racks, and {host.provenance.source} has groups of GPUs within a host"
        raise ProfileError(mistake(profile.provenance.source, problem, "leave one out; a profile holds two tiers"))
    return {"topology": _repeated(host, home)}


def _network(profile: Profile, found: Profile) -> dict[str, Any]:
    home = _hosts(profile) or [*range(profile.ranks)]
    hosts = len({*home})
    if found.ranks == profile.ranks:
        members = [[rank] for rank in range(profile.ranks)]
    elif found.ranks == hosts:
        members = [[rank for rank in range(profile.ranks) if home[rank] == host] for host in range(hosts)]
        if found.hosts and {*found.hosts} == {*profile.hosts}:
            names = [*dict.fromkeys(profile.hosts)]
            members = [members[names.index(name)] for name in found.hosts]
    else:
        problem = f"has {profile.ranks} ranks on {hosts} hosts; {found.provenance.source} has {found.ranks} ranks"
        raise ProfileError(mistake(profile.provenance.source, problem, "describe the same cluster"))
    if not (found.topology or found.racks or found.nics):
        problem = "has no hosts, racks or slow NICs: all links in it are alike"
        raise ProfileError(mistake(found.provenance.source, problem, "leave it out"))
    racks = [
        rack.model_dump() | {"ranks": sorted(rank for each in rack.ranks for rank in members[each])}
        for rack in found.racks
    ]
    of_rank = {rank: nic for ranks, nic in zip(members, found.nics, strict=bool(found.nics)) for rank in ranks}
    topology = found.topology or profile.topology
    placed = topology.model_dump() | ({} if found.topology else {"racks": (), "uplinks": ()}) if topology else None
    return {"topology": placed, "racks": racks, "nics": [of_rank[rank] for rank in sorted(of_rank)]}


def _hosts(profile: Profile) -> list[int]:
    """The host of each rank, from the names or the topology; empty if the profile has neither."""
    if profile.topology and not profile.hosts:
        return [*profile.topology.hosts]
    number = {name: i for i, name in enumerate(dict.fromkeys(profile.hosts))}
    return [number[name] for name in profile.hosts]
