"""Connects this process with every other one of its job, once for each `jax.distributed.initialize`.

Each process publishes a signed record of itself and looks up the others'. Processes of one host open each other's
shared memory; of two on different hosts the lower listens and the higher connects, on every rail that both have. All
publish how that went, so that either all processes are connected or each raises an error that says which are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import host, names, rails, records, secret, settings, stages, store, udp_paths
from jaxcomm.distributed.addresses import listening_socket
from jaxcomm.distributed.listener import Listener
from jaxcomm.distributed.rail_connections import (
    connect_rails,
    rails_between,
    rails_shares,
    round_trips_over,
    say_down,
    used_rails,
)
from jaxcomm.distributed.rails import RailEnd
from jaxcomm.distributed.records import Record
from jaxcomm.distributed.repair import RailsCore, Repair
from jaxcomm.distributed.settings import NamedRail, Settings
from jaxcomm.distributed.udp_paths import UdpPath
from jaxcomm.distributed.ways import agreed_way
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say_once
from jaxcomm.shares import SharesFrom


class MessageCore(RailsCore, Protocol):
    """What carries messages between processes once they are connected; one for each generation."""

    def shm_file(self) -> tuple[int, int]:
        """The descriptor of this process's shared-memory file, which the core keeps open, and the number it bears."""

    def add_shm(self, process: int, fd: int, number: int) -> None:
        """Takes the descriptor of another process's file, which must bear this number."""

    def open_rails(self, kind: str, names: list[str]) -> None:
        """Opens the rails of these names, all "tcp" or "udp", numbered in an order that all processes have."""

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        """Sets the rails to a process, and every rail's share by smallest size; not called for one rail.

        Those that are down count as cut once.
        """

    def add_tcp(self, process: int, rail: int, fd: int) -> None:
        """Takes a connected, authenticated, non-blocking socket."""

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        """Takes the sockets of a path."""

    def start(self, hosts: Sequence[int], host_names: Sequence[str]) -> None:
        """Starts the transport: all other processes have been added. Takes each process's host: its number and name."""

    def close(self) -> None:
        """Ends the generation: says goodbye to the other processes, and releases what led to them."""


class Membership(NamedTuple):
    """The processes that are connected.

    Attributes:
      generation: counts the times that this job's processes were connected.
      process: this one.
      transports: of each process "shm", "tcp" or "udp", and "" for this one.
      hosts: of each process the first process on its host.
      is_over_udp: whether processes that share no memory go over UDP.
      strangers: connections that were closed because they did not belong to the job.
      core: carries messages between the processes.
      ends: the rails of this process.
      shares: of each process that is reached over the network, what its rails carry.
      round_trips: by process and rail, the least so far in seconds, as far as the kernel knows them.
      repair: reconnects rails that are cut; None where there are not several.
    """

    generation: int
    process: int
    transports: tuple[str, ...]
    hosts: tuple[int, ...]
    is_over_udp: bool
    strangers: int
    core: MessageCore
    ends: tuple[RailEnd, ...]
    shares: Mapping[int, Sequence[SharesFrom]]
    round_trips: Mapping[tuple[int, str], float]
    repair: Repair | None


_lock = threading.Lock()
# With the store that it was made through, the settings that held, and the planned shares of rails.
_connected: tuple[Any, Membership | Exception, Settings, tuple[SharesFrom, ...]] | None = None
_core: MessageCore | None = None  # of the last generation, also of one that could not be connected
_generation = 0


def connect(
    new_core: Callable[[], MessageCore],
    named: Sequence[NamedRail] = (),
    planned: Sequence[SharesFrom] = (),
    planned_transport: str = "",
) -> Membership:
    """Connects this process with every other one; the second call returns what the first one did.

    All processes must call it. How they are connected is for `jaxcomm.distributed.settings` to say.

    Args:
      new_core: makes the core, which is started when this returns.
      named: the rails, in place of those of the settings; () leaves them.
      planned: the shares of rails in a plan.
      planned_transport: "tcp" or "udp", as a plan says, or "".

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or a process does not come or cannot be connected. Then
        no process is connected, until `jax.distributed` is initialized anew.
    """
    global _connected, _core, _generation
    with _lock:
        client = store.client()
        if _connected is None or _connected[0] is not client:
            _close()
            _generation += 1
            chosen = Settings()
            try:
                chosen = settings.from_environment()
                chosen = chosen._replace(rails=tuple(named) or chosen.rails, planned_transport=planned_transport)
                _core, coordinator = new_core(), jax_compat.coordinator_address()
                made: Membership | Exception = connect_as(
                    jax.process_index(), jax.process_count(), _core, chosen, coordinator, _generation, planned
                )
            except Exception as error:
                stages.publish_failure(jax.process_index(), error)
                made = error
            _connected = client, made, chosen, tuple(planned)
        _, outcome, chosen, followed = _connected
    if isinstance(outcome, Exception):
        raise outcome
    if named and tuple(named) != chosen.rails:
        raise JaxcommError(
            f"this process is connected already, by {_words(chosen.rails) or 'rails that nobody named'}; "
            f"{_words(named)} come too late.\n"
            "  Cure: call jaxcomm.init(rails=…) before the first collective, in all processes."
        )
    if planned and tuple(planned) != followed and any(len(each[0].shares) > 1 for each in outcome.shares.values()):
        say_once(
            "the processes are connected already: the rails keep the shares that they have, in place of the plan's. "
            "Call jaxcomm.init(plan=…) before the first collective."
        )
    between_hosts = {"tcp", "udp"} & {*outcome.transports}
    if planned_transport not in ("", chosen.planned_transport) and chosen.follows_plan and between_hosts:
        say_once(
            f"the processes are connected already: between hosts {' and '.join(between_hosts).upper()} stays, in place "
            "of the plan's choice. Call jaxcomm.init(plan=…) before the first collective."
        )
    return outcome


def close_last() -> None:
    """Ends the last generation, if `jax.distributed` has been shut down since.

    Raises:
      JaxcommError: a call between its processes has not ended.
    """
    with _lock:
        if _connected is not None and not (jax_compat.spans_processes() and _connected[0] is store.client()):
            _close()


def _close() -> None:
    global _connected, _core
    if _connected is not None and isinstance(_connected[1], Membership) and _connected[1].repair is not None:
        _connected[1].repair.close()
    _connected = None
    if _core is not None:
        _core.close()
        _core = None


def connect_as(
    process: int,
    processes: int,
    core: MessageCore,
    chosen: Settings,
    coordinator: str,
    generation: int,
    planned: Sequence[SharesFrom] = (),
) -> Membership:
    """Connects the process of this number with the others.

    Args:
      coordinator: "host:port" of `jax.distributed`.
      generation: counted by each process; that of process 0 holds.
      planned: as for `connect`.

    Raises:
      JaxcommError: as `connect`.
    """
    deadline = time.monotonic() + chosen.timeout_s
    others = [other for other in range(processes) if other != process]
    try:
        if store.find(f"record/{process}") is not None:  # only another process of this number can have published it
            raise JaxcommError(
                f"process {process} was started again, but the processes of a job connect once, all together.\n"
                "  Cure: start all processes again; or leave this one out, and the others may go on without it."
            )
        generation, key = _agree_on_key(process, chosen, generation, deadline)
        way = agreed_way(process, others, chosen, coordinator, deadline)
        with contextlib.ExitStack() as after_failure:
            listeners: dict[str, Listener] = {}
            bound: dict[str, socket.socket] = {}
            own_rails = [] if chosen.transport == "shm" else rails.own_rails(chosen, way)
            over_udp = chosen.transport == "udp" or (chosen.follows_plan and chosen.planned_transport == "udp")
            for number, rail in enumerate(own_rails):
                if not rail.address:
                    continue
                bound[rail.name] = listening_socket(rail.address, rail.interface)
                after_failure.callback(bound[rail.name].close)
                made = Listener(bound[rail.name], key, process=process, processes=processes, rail=number)
                listeners[rail.name] = made
                after_failure.callback(made.abandon)
                own_rails[number] = rail._replace(port=made.address[1])
            own = _own_record(process, chosen, over_udp, core, own_rails, planned)
            stages.publish("record", process, records.signed(own, key))
            peers = {
                other: records.verified(text, other, key)
                for other, text in stages.lookup_all("record", others, deadline, "come").items()
            }
            rails.check_missing([record.rails for record in [own, *peers.values()]])
            sharing = [other for other, peer in peers.items() if host.share_memory(own, peer)]
            between_hosts = host.between_hosts([own, *peers.values()])
            if over_udp and between_hosts == "tcp":
                by_tcp = [other for other, peer in peers.items() if not peer.udp_between_hosts]
                say_once(f"processes {', '.join(map(str, by_tcp))} follow no plan's UDP; TCP connects all.")
            leads = {other: rails_between(own, peer) for other, peer in peers.items() if other not in sharing}
            files = {}
            for other in sharing:
                files[other] = host.open_shared_memory(peers[other])
                after_failure.callback(os.close, files[other])
            say_down([own, *peers.values()])
            sockets, lacking, down = connect_rails(own, peers, leads, key, deadline, after_failure)
            stages.publish("connected", process, json.dumps([lacking, down]))
            connected = stages.lookup_all("connected", others, deadline, "connected")
            for name, listener in listeners.items():
                for other, connection in listener.close().items():
                    after_failure.callback(connection.close)
                    sockets[other, name] = connection
            lacking_somewhere = {*lacking}
            for other, text in connected.items():
                their_lacking, their_down = json.loads(text)
                lacking_somewhere |= {*their_lacking}
                down += [(other, name) for to, name in their_down if to == process]
            for to in down:
                if (unused := sockets.pop(to, None)) is not None:  # the other side gave it up
                    unused.close()
            paths: dict[tuple[int, str], UdpPath] = {}
            if between_hosts == "udp":
                connections = {to: made for to, made in sockets.items() if to[1] not in lacking_somewhere}
                paths, without = _agree_on_paths(own, others, connections, key, deadline, after_failure)
                lacking_somewhere |= without
            after_failure.pop_all()
    except Exception as error:
        stages.publish_failure(process, error)
        raise
    leads = {other: [name for name in lead if name not in lacking_somewhere] for other, lead in leads.items()}
    for other, file in files.items():
        core.add_shm(other, file, peers[other].number)
    used = used_rails([own, *peers.values()], lacking_somewhere)
    round_trips = round_trips_over(leads, sockets)
    shares = rails_shares(own, peers, leads, round_trips, planned)
    core.open_rails(between_hosts, used or [rails.DEFAULT])
    _add_rails(core, own, peers, used, leads, sockets, paths, shares, planned, down)
    records_of = [record for _, record in sorted({**peers, process: own}.items())]
    identities = [record.host for record in records_of]
    hosts = tuple(identities.index(identity) for identity in identities)
    core.start(hosts, [record.host_name for record in records_of])
    repair = Repair(core, own, peers, used, key, bound, down) if len(used) > 1 and leads else None
    if repair is None:
        for each in bound.values():
            each.close()
    return Membership(
        generation,
        process,
        tuple("" if other == process else "shm" if other in sharing else between_hosts for other in range(processes)),
        hosts,
        between_hosts == "udp",
        sum(listener.strangers for listener in listeners.values()),
        core,
        own.rails,
        shares,
        round_trips,
        repair,
    )


def _agree_on_paths(
    own: Record,
    others: list[int],
    connections: Mapping[tuple[int, str], socket.socket],
    key: bytes,
    deadline: float,
    after_failure: contextlib.ExitStack,
) -> tuple[dict[tuple[int, str], UdpPath], set[str]]:
    """The UDP paths over these connections, and the rails without which all processes must go."""
    ends = {end.name: end for end in own.rails}
    paths, lacking = udp_paths.agree(own.process, connections, ends, key, deadline, after_failure)
    for (_, name), error in lacking.items():
        say_once(f"no process uses the rail {name}: {error}")
    without = {name for _, name in lacking}
    stages.publish("udp", own.process, json.dumps(sorted(without)))
    published = stages.lookup_all("udp", others, deadline, "connected")
    return paths, without.union(*map(json.loads, published.values()))


def _words(named: Sequence[NamedRail]) -> str:
    return ", ".join(f"{rail.name}:{rail.rate}" if rail.rate else rail.name for rail in named)


def _add_rails(
    core: MessageCore,
    own: Record,
    peers: Mapping[int, Record],
    used: list[str],
    leads: Mapping[int, list[str]],
    sockets: Mapping[tuple[int, str], socket.socket],
    paths: Mapping[tuple[int, str], UdpPath],
    shares: Mapping[int, Sequence[SharesFrom]],
    planned: Sequence[SharesFrom],
    down: Sequence[tuple[int, str]],
) -> None:
    """Gives the core the shares of its rails and their connections, or the paths that these are of."""
    for other in leads:
        theirs = {rail.name for rail in peers[other].rails}
        if lacking := [rail.name for rail in own.rails if not rail.network and rail.name not in theirs]:
            say_once(f"process {other} is not reached over the rails {', '.join(lacking)}, which it has not named.")
    if planned and leads and not rails.is_planned(own.rails, planned):
        say_once(f"the plan's shares are not followed: {rails.source(own.rails, planned, is_named=False)}.")
    for other, lead in leads.items():
        if len(used) > 1 and any((other, name) in sockets for name in lead):
            table = [(each.min_bytes, [each.shares.get(name, 0) for name in used]) for each in shares[other]]
            cut = [used.index(name) for name in lead if (other, name) in down]
            core.set_rails(other, [used.index(name) for name in lead if (other, name) not in down], cut, table)
    for (other, name), connection in sockets.items():
        path = paths.get((other, name))
        if name not in leads[other]:
            connection.close()
            if path is not None:
                path.socket.close()
        elif path is not None:
            core.add_udp(other, used.index(name), path)
        else:
            core.add_tcp(other, used.index(name), connection.detach())


def _agree_on_key(process: int, chosen: Settings, generation: int, deadline: float) -> tuple[int, bytes]:
    """The generation, which process 0 counts, and its key; process 0 makes the secret unless a file holds it."""
    own = secret.read(chosen.secret_file) if chosen.secret_file else secret.new() if process == 0 else b""
    if process == 0:
        stages.publish("generation", 0, json.dumps([generation, "" if chosen.secret_file else own.hex()]))
    generation, published = json.loads(stages.lookup_all("generation", [0], deadline, "come")[0])
    if bool(published) == bool(chosen.secret_file):
        with_file, without = (process, 0) if published else (0, process)
        raise JaxcommError(
            f"JAXCOMM_SECRET_FILE is set in process {with_file}, and not in process {without}.\n"
            "  Cure: set it in all processes, or in none."
        )
    return generation, secret.key(bytes.fromhex(published) or own, names.job(), generation)


def _own_record(
    process: int,
    chosen: Settings,
    over_udp: bool,
    core: MessageCore,
    own_rails: list[RailEnd],
    planned: Sequence[SharesFrom],
) -> Record:
    shared = (-1, 0) if chosen.transport in ("tcp", "udp") else core.shm_file()
    digest = hashlib.sha256(json.dumps(planned).encode()).hexdigest()[:16] if planned else ""
    identity = chosen.host or host.identity()
    name = socket.gethostname()
    return Record(process, chosen.transport, over_udp, identity, os.getpid(), *shared, tuple(own_rails), digest, name)
