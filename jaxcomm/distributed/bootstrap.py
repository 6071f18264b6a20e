"""Connects this process with every other one of its job, once for each `jax.distributed.initialize`.

Each process publishes a signed record of itself and looks up the others'. Processes of one host open each other's
shared memory; of two on different hosts the lower listens and the higher connects. All publish how that went, so that
either all processes are connected or each raises an error that says which are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import host, names, records, secret, settings, store
from jaxcomm.distributed.addresses import bound_socket, local_address
from jaxcomm.distributed.connector import connect_to
from jaxcomm.distributed.listener import Listener
from jaxcomm.distributed.records import Record
from jaxcomm.distributed.settings import Settings
from jaxcomm.errors import JaxcommError

_RAIL = 0
_FAILED = "failed: "
_CURE = "run the same steps in all processes; JAXCOMM_CONNECT_TIMEOUT_S=600 gives them more time."


class MessageCore(Protocol):
    """What carries messages between processes once they are connected; one for each generation."""

    def shm_file(self) -> tuple[int, int]:
        """The descriptor of this process's shared-memory file, which the core keeps open, and the number it bears."""

    def add_shm(self, process: int, fd: int, number: int) -> None:
        """Takes the descriptor of another process's file, which must bear this number."""

    def add_tcp(self, process: int, fd: int) -> None:
        """Takes a connected, authenticated, non-blocking socket."""

    def start(self) -> None:
        """All others have been added."""


class Membership(NamedTuple):
    """The processes that are connected.

    Attributes:
      generation: counts the times that this job's processes were connected.
      process: this one.
      transports: of each process "shm" or "tcp", and "" for this one.
      strangers: connections that were closed because they did not belong to the job.
      core: carries messages between the processes.
    """

    generation: int
    process: int
    transports: tuple[str, ...]
    strangers: int
    core: MessageCore


_lock = threading.Lock()
_connected: tuple[Any, Membership | Exception] | None = None  # with the store that it was made through
_generation = 0


def connect(new_core: Callable[[], MessageCore]) -> Membership:
    """Connects this process with every other one; the second call returns what the first one did.

    All processes must call it. How they are connected is for `jaxcomm.distributed.settings` to say.

    Args:
      new_core: makes the core, which is started when this returns.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or a process does not come or cannot be connected. Then
        no process is connected, until `jax.distributed` is initialized anew.
    """
    global _connected, _generation
    with _lock:
        client = store.client()
        if _connected is None or _connected[0] is not client:
            _generation += 1
            try:
                made: Membership | Exception = connect_as(
                    jax.process_index(),
                    jax.process_count(),
                    new_core(),
                    settings.from_environment(),
                    jax_compat.coordinator_address(),
                    _generation,
                )
            except Exception as error:
                made = error
            _connected = client, made
        outcome = _connected[1]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def connect_as(
    process: int, processes: int, core: MessageCore, chosen: Settings, coordinator: str, generation: int
) -> Membership:
    """Connects the process of this number with the others.

    Args:
      coordinator: "host:port" of `jax.distributed`.
      generation: counted by each process; that of process 0 holds.

    Raises:
      JaxcommError: as `connect`.
    """
    deadline = time.monotonic() + chosen.timeout_s
    others = [other for other in range(processes) if other != process]
    try:
        generation, key = _agree_on_key(process, chosen, generation, deadline)
        with contextlib.ExitStack() as after_failure:
            listener = None
            if chosen.transport != "shm":
                listener = _listen(process, processes, chosen, coordinator, key)
                after_failure.callback(listener.abandon)
            own = _own_record(process, chosen, core, listener)
            store.publish(f"record/{process}", records.signed(own, key))
            peers = {
                other: records.verified(text, other, key)
                for other, text in _lookup_all("record", others, deadline, "come").items()
            }
            transports = {other: host.transport(own, peer) for other, peer in peers.items()}
            files, sockets = {}, {}
            for other, transport in transports.items():
                if transport == "shm":
                    files[other] = host.open_shared_memory(peers[other])
                    after_failure.callback(os.close, files[other])
                elif other < process:
                    sockets[other] = connect_to(
                        peers[other],
                        key,
                        process=process,
                        rail=_RAIL,
                        interface=chosen.interface,
                        deadline=deadline,
                    )
                    after_failure.callback(sockets[other].close)
            store.publish(f"connected/{process}", "")
            _lookup_all("connected", others, deadline, "connected")
            after_failure.pop_all()
    except Exception as error:
        for stage in ("generation", "record", "connected"):  # as far as it has not been published
            store.publish(f"{stage}/{process}", f"{_FAILED}{error}")
        raise
    sockets |= listener.close() if listener else {}
    for other, file in files.items():
        core.add_shm(other, file, peers[other].number)
    for other, connection in sockets.items():
        core.add_tcp(other, connection.detach())
    core.start()
    return Membership(
        generation,
        process,
        tuple(transports.get(other, "") for other in range(processes)),
        listener.strangers if listener else 0,
        core,
    )


def _agree_on_key(process: int, chosen: Settings, generation: int, deadline: float) -> tuple[int, bytes]:
    """The generation, which process 0 counts, and its key; process 0 makes the secret unless a file holds it."""
    own = secret.read(chosen.secret_file) if chosen.secret_file else secret.new() if process == 0 else b""
    if process == 0:
        store.publish("generation/0", json.dumps([generation, "" if chosen.secret_file else own.hex()]))
    generation, published = json.loads(_lookup_all("generation", [0], deadline, "come")[0])
    if bool(published) == bool(chosen.secret_file):
        with_file, without = (process, 0) if published else (0, process)
        raise JaxcommError(
            f"JAXCOMM_SECRET_FILE is set in process {with_file}, and not in process {without}.\n"
            "  Cure: set it in all processes, or in none."
        )
    return generation, secret.key(bytes.fromhex(published) or own, names.job(), generation)


def _listen(process: int, processes: int, chosen: Settings, coordinator: str, key: bytes) -> Listener:
    address = local_address(coordinator, chosen.interface)
    bound = bound_socket(address, chosen.interface)
    bound.bind((address, 0))
    return Listener(bound, key, process=process, processes=processes, rail=_RAIL)


def _own_record(process: int, chosen: Settings, core: MessageCore, listener: Listener | None) -> Record:
    shared = (-1, 0) if chosen.transport == "tcp" else core.shm_file()
    return Record(
        process,
        chosen.transport,
        chosen.host or host.identity(),
        os.getpid(),
        *shared,
        *(listener.address if listener else ("", 0)),
    )


def _lookup_all(stage: str, others: list[int], deadline: float, verb: str) -> dict[int, str]:
    """What all others have published at a stage.

    Raises:
      JaxcommError: processes have not come so far, or one says why it could not.
    """
    found, missing = store.lookup_all({other: f"{stage}/{other}" for other in others}, deadline)
    for other, text in found.items():
        if text.startswith(_FAILED):
            reason = text.removeprefix(_FAILED).splitlines()[0]
            raise JaxcommError(f"process {other} could not be connected: {reason}\n  Cure: see its error.")
    if missing:
        words = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise JaxcommError(f"{words} ha{'ve' if len(missing) > 1 else 's'} not {verb} in time.\n  Cure: {_CURE}")
    return found
