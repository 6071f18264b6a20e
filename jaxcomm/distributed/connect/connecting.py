"""Connects one process with the other processes of its job, in stages that all processes go through together.

Each process publishes a signed record of itself and looks up the other records. Processes on one host open each other's
shared memory. Between hosts, the process with the lower number listens, and the process with the higher number connects
over every common rail. Each process publishes its result. So either all processes are connected, or each process raises
an error that names the missing processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.distributed.connect import fabric_paths, records, stages, tcp_paths, udp_paths
from jaxcomm.distributed.connect.addresses import listening_socket
from jaxcomm.distributed.connect.agreed_route import agreed_route
from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.introductions import (
    Introduced,
    agree_on_key,
    exchange_records,
    own_record,
)
from jaxcomm.distributed.connect.listener import Listener
from jaxcomm.distributed.connect.membership import ABSENT, Membership, MessageCore
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.connect.tcp_paths import TcpPath
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.changed_addresses import ChangedAddresses
from jaxcomm.distributed.rails.connections import (
    connect_rails,
    rails_between,
    rails_shares,
    round_trips_over,
    say_down,
    used_rails,
)
from jaxcomm.distributed.rails.named_rails import FABRIC
from jaxcomm.distributed.rails.planned_rails import shares_of
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.distributed.rails.repair import Repair
from jaxcomm.environment import ENCRYPT, RAILS
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRails, SharesFrom
from jaxcomm.log import say_once

_KINDS: Final = ("tcp", "udp", FABRIC)
_Path = TcpPath | UdpPath | FabricPath


class _Ends(NamedTuple):
    """The rails of this process, and their sockets and listeners by rail name."""

    rails: list[RailEnd]
    bound: dict[str, socket.socket]
    listeners: dict[str, Listener]


class _Connections(NamedTuple):
    """The connections to other hosts.

    Attributes:
      leads: the rails to each process.
      sockets: the connections, by process and rail.
      paths: the paths that belong to connections, by process and rail; unencrypted TCP connections have none.
      used: the rails of the job.
      kinds: the kind of each rail.
      transport: the kind, "tcp" or "udp", of the rails that name no kind of their own.
      down: the pairs of a process and a rail that are not connected now.
    """

    leads: dict[int, list[str]]
    sockets: dict[tuple[int, str], socket.socket]
    paths: dict[tuple[int, str], _Path]
    used: list[str]
    kinds: dict[str, str]
    transport: str
    down: list[tuple[int, str]]


def connect_as(
    process: int,
    processes: int,
    core: MessageCore,
    chosen: Settings,
    coordinator: str,
    generation: int,
    planned: PlanRails | None = None,
    members: Sequence[int] | None = None,
) -> Membership:
    """Connects this process with the other processes.

    Args:
      process: the number of this process.
      processes: the number of processes in the job.
      core: the core that carries the messages. It is started when this returns.
      chosen: the settings.
      coordinator: "host:port" of `jax.distributed`.
      generation: this process's count of generations. All processes use the count of the first member.
      planned: the rails of a plan.
      members: the processes that are members of this generation; None: all processes of the job.

    Raises:
      JaxcommError: a process is missing or cannot be connected, or the plan's rails do not match the job's.
    """
    deadline = time.monotonic() + chosen.timeout_s
    members = range(processes) if members is None else members
    others = [other for other in members if other != process]
    try:
        if chosen.encrypts:
            core.check_encryption()
        generation, key = agree_on_key(process, min(members), chosen, generation, deadline)
        route = agreed_route(process, others, chosen, coordinator, deadline)
        with contextlib.ExitStack() as after_failure:
            ends = _listen(process, processes, core, chosen, route, key, after_failure)
            over_udp = chosen.transport == "udp" or (chosen.follows_plan and chosen.planned_transport == "udp")
            own = own_record(process, chosen, over_udp, core, ends.rails, planned)
            job = Introduced(own, exchange_records(own, others, key, deadline), key, deadline)
            transport = records.transport(job.records)
            if over_udp and transport == "tcp":
                by_tcp = [other for other, peer in job.peers.items() if not peer.allows_udp]
                say_once(f"processes {', '.join(map(str, by_tcp))} do not allow UDP; all processes use TCP.")
            files = _open_files(job, after_failure)
            connections = _connect_hosts(job, ends.listeners, transport, after_failure)
            shares = shares_of(planned, connections.used, [end for record in job.records for end in record.rails])
            after_failure.pop_all()
    except Exception as error:
        stages.publish_failure(process, error)
        raise
    return _start(core, job, processes, generation, ends, files, connections, shares)


def _listen(
    process: int,
    processes: int,
    core: MessageCore,
    chosen: Settings,
    route: str,
    key: bytes,
    after_failure: contextlib.ExitStack,
) -> _Ends:
    """Listens on every rail that has an address, and opens the endpoints of fabric rails."""
    ends = _Ends([] if chosen.transport == "shm" else rail_ends.own_rails(chosen, route), {}, {})
    for number, rail in enumerate(ends.rails):
        if rail.kind == FABRIC and chosen.encrypts:
            raise JaxcommError(
                f"{ENCRYPT} is on, but the rail {rail.name} cannot encrypt messages.\n"
                f"  Cure: leave it out of {RAILS} everywhere, or unset {ENCRYPT} everywhere."
            )
        if rail.kind == FABRIC:
            rail = ends.rails[number] = _with_endpoint(core, rail, is_alone=len(ends.rails) == 1)
        if not rail.address:
            continue
        bound = ends.bound[rail.name] = listening_socket(rail.address, rail.interface)
        after_failure.callback(bound.close)
        listener = ends.listeners[rail.name] = Listener(bound, key, process=process, processes=processes, rail=number)
        after_failure.callback(listener.abandon)
        ends.rails[number] = rail._replace(port=listener.address[1])
    return ends


def _with_endpoint(core: MessageCore, rail: RailEnd, *, is_alone: bool) -> RailEnd:
    """Opens a fabric rail's endpoint and returns the rail, marked as down if this fails; raises for the only rail."""
    try:
        return rail._replace(fabric=core.open_fabric(rail.name, *rail_ends.fabric_name(rail.name)))
    except JaxcommError as error:
        if is_alone:
            raise
        say_once(f"the rail {rail.name} cannot be used here: {error}")
        return rail._replace(address="", is_up=False)


def _open_files(job: Introduced, after_failure: contextlib.ExitStack) -> dict[int, int]:
    """Opens the shared-memory files of processes on this host. Returns the files' descriptors by process."""
    files = {}
    for other in job.sharing():
        files[other] = records.open_shared_memory(job.peers[other])
        after_failure.callback(os.close, files[other])
    return files


def _connect_hosts(
    job: Introduced, listeners: Mapping[str, Listener], transport: str, after_failure: contextlib.ExitStack
) -> _Connections:
    """Connects this process with processes on other hosts, and agrees with all processes on the unused rails."""
    own, sharing = job.own, job.sharing()
    all_rails = [record.rails for record in sorted(job.records)]  # in the same order in all processes
    differing = rail_ends.differing(all_rails, transport)
    for name, found in differing.items():
        say_once(f"no process uses the rail {name}, because it is {found} in different processes.")
    leads = {other: rails_between(own, peer, differing) for other, peer in job.peers.items() if other not in sharing}
    say_down(job.records)
    sockets, lacking, down = connect_rails(own, job.peers, leads, job.key, job.deadline, after_failure)
    stages.publish("connected", own.process, json.dumps([lacking, down]))
    connected = job.lookup("connected")
    for name, listener in listeners.items():
        for other, connection in listener.close().items():
            after_failure.callback(connection.close)
            sockets[other, name] = connection
    without = {*lacking, *differing}
    for other, text in connected.items():
        their_lacking, their_down = json.loads(text)
        without |= {*their_lacking}
        down += [(other, name) for to, name in their_down if to == own.process]
    for to in down:
        if (unused := sockets.pop(to, None)) is not None:  # the other process did not keep this connection
            unused.close()
    paths: dict[tuple[int, str], _Path] = {}
    kinds = rail_ends.kinds(all_rails, transport)
    if own.encrypts or any(kind != "tcp" for kind in kinds.values()):
        used = {to: made for to, made in sockets.items() if to[1] not in without}
        paths, without_paths = _agree_on_paths(job, used, kinds, after_failure)
        without |= without_paths
    leads = {other: [name for name in lead if name not in without] for other, lead in leads.items()}
    return _Connections(leads, sockets, paths, used_rails(job.records, without), kinds, transport, down)


def _agree_on_paths(
    job: Introduced,
    sockets: Mapping[tuple[int, str], socket.socket],
    kinds: Mapping[str, str],
    after_failure: contextlib.ExitStack,
) -> tuple[dict[tuple[int, str], _Path], set[str]]:
    """Returns the rails' paths over these connections, and the rails that no process uses."""
    own, key, deadline = job.own, job.key, job.deadline
    of_kind = {kind: {to: made for to, made in sockets.items() if kinds[to[1]] == kind} for kind in _KINDS}
    ends = {end.name: end for end in own.rails}
    theirs = {(other, end.name): end for other, peer in job.peers.items() for end in peer.rails}
    over_fabric = fabric_paths.agree(own.process, of_kind[FABRIC], theirs, key, deadline)
    over_tcp = tcp_paths.agree(own.process, of_kind["tcp"], key, deadline) if own.encrypts else {}
    seals = {other: records.seals(own, peer) for other, peer in job.peers.items()}
    over_udp, lacking = udp_paths.agree(own.process, of_kind["udp"], ends, key, deadline, after_failure, seals)
    for (_, name), error in lacking.items():
        say_once(f"no process uses the rail {name}: {error}")
    without = {name for _, name in lacking}
    stages.publish("paths", own.process, json.dumps(sorted(without)))
    paths: dict[tuple[int, str], _Path] = {**over_tcp, **over_udp, **over_fabric}
    return paths, without.union(*map(json.loads, job.lookup("paths").values()))


def _start(
    core: MessageCore,
    job: Introduced,
    processes: int,
    generation: int,
    ends: _Ends,
    files: Mapping[int, int],
    connections: _Connections,
    planned: Sequence[SharesFrom],
) -> Membership:
    """Gives the core all connections and starts the core. `planned` are the planned shares of the job's rails."""
    own, leads, used = job.own, connections.leads, connections.used
    for other, file in files.items():
        core.add_shm(other, file, job.peers[other].number)
    round_trips = round_trips_over(leads, connections.sockets, connections.kinds)
    shares = rails_shares(own, job.peers, leads, round_trips, planned)
    kinds = tuple(connections.kinds[name] for name in used) or (connections.transport,)
    core.open_rails([*zip(kinds, used or [rail_ends.DEFAULT], strict=True)])
    _say_lacking(job, leads)
    _add_rails(core, connections, shares)
    members = {record.process: record for record in job.records}
    identities = [members[each].host if each in members else each for each in range(processes)]
    hosts = tuple(map(identities.index, identities))
    core.start(
        [host if process in members else ABSENT for process, host in enumerate(hosts)],
        [members[each].host_name if each in members else "" for each in range(processes)],
        has_processor_each=_has_processor_each([record.pid for record in job.records if record.host == own.host]),
    )
    repair = None
    if len(used) > 1 and leads:
        changed = ChangedAddresses(own.process)
        repair = Repair(
            core, own, job.peers, dict(zip(used, kinds, strict=True)), job.key, ends.bound, changed, connections.down
        )
    else:
        for each in ends.bound.values():
            each.close()
    return Membership(
        generation=generation,
        process=own.process,
        incarnations={process: members[process].incarnation for process in sorted(members)},
        transports=tuple(
            "" if to == own.process or to not in members else "shm" if to in files else "+".join(dict.fromkeys(kinds))
            for to in range(processes)
        ),
        hosts=hosts,
        host_names={process: record.host for process, record in members.items()},
        strangers=sum(listener.strangers for listener in ends.listeners.values()),
        core=core,
        ends=own.rails,
        rails=tuple(used),
        kinds=kinds,
        shares=shares,
        round_trips=round_trips,
        repair=repair,
    )


def _has_processor_each(pids: Sequence[int]) -> bool:
    """Whether these processes of this host can run on at least as many processors as there are processes."""
    processors = os.sched_getaffinity(0)
    for pid in pids:
        with contextlib.suppress(OSError):  # a process in another container
            processors |= os.sched_getaffinity(pid)
    return len(processors) >= len(pids)


def _say_lacking(job: Introduced, leads: Mapping[int, list[str]]) -> None:
    """Logs this process's named rails that another process does not have."""
    own = job.own
    for other in leads:
        theirs = {rail.name for rail in job.peers[other].rails}
        if lacking := [rail.name for rail in own.rails if not rail.network and rail.name not in theirs]:
            say_once(f"process {other} does not name the rails {', '.join(lacking)}; no message to it uses them.")


def _add_rails(core: MessageCore, connections: _Connections, shares: Mapping[int, Sequence[SharesFrom]]) -> None:
    """Gives the core the shares of its rails, and their connections or paths."""
    leads, sockets, used, down = connections.leads, connections.sockets, connections.used, connections.down
    for other, lead in leads.items():
        if len(used) > 1 and any((other, name) in sockets for name in lead):
            table = [(each.min_bytes, [each.shares.get(name, 0) for name in used]) for each in shares[other]]
            cut = [used.index(name) for name in lead if (other, name) in down]
            core.set_rails(other, [used.index(name) for name in lead if (other, name) not in down], cut, table)
    for (other, name), connection in sockets.items():
        path = connections.paths.get((other, name))
        if name not in leads[other]:
            connection.close()
            if isinstance(path, UdpPath):
                path.close_sockets()
        elif isinstance(path, UdpPath):
            core.add_udp(other, used.index(name), path)
        elif isinstance(path, FabricPath):
            core.add_fabric(other, used.index(name), path)
        else:
            core.add_tcp(other, used.index(name), connection.detach(), path.keys if path else None)
