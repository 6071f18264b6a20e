"""The first stages of connecting: the processes agree on a key and exchange signed records of themselves."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from jaxcomm.distributed import rails, records, secret, stages, store
from jaxcomm.distributed.membership import MessageCore
from jaxcomm.distributed.rails import RailEnd
from jaxcomm.distributed.records import Record
from jaxcomm.distributed.settings import Settings
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom


class Introduced(NamedTuple):
    """The records of all processes, and the key and deadline of the next stages."""

    own: Record
    peers: dict[int, Record]
    key: bytes
    deadline: float

    @property
    def records(self) -> list[Record]:
        """This process's record, then the others'."""
        return [self.own, *self.peers.values()]

    def sharing(self) -> list[int]:
        """The processes that share memory with this one."""
        return [other for other, peer in self.peers.items() if records.share_memory(self.own, peer)]

    def lookup(self, stage: str) -> dict[int, str]:
        """The texts that the others published at a stage that connects."""
        return stages.lookup_all(stage, self.peers, self.deadline, "connected")


def check_is_first(process: int) -> None:
    """Checks that no process of this number has connected before.

    Raises:
      JaxcommError: one has.
    """
    if store.find(f"record/{process}") is not None:  # only another process of this number can have published it
        raise JaxcommError(
            f"process {process} was started again, but the processes of a job connect once, all together.\n"
            "  Cure: start all processes again; or leave this one out, and the others may go on without it."
        )


def agree_on_key(process: int, chosen: Settings, generation: int, deadline: float) -> tuple[int, bytes]:
    """The generation, which process 0 counts, and its key; process 0 makes the secret unless a file holds it.

    Raises:
      JaxcommError: a process is missing, or only some have a file.
    """
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
    return generation, secret.key(bytes.fromhex(published) or own, records.job_name(), generation)


def own_record(
    process: int,
    chosen: Settings,
    over_udp: bool,
    core: MessageCore,
    own_rails: list[RailEnd],
    planned: Sequence[SharesFrom],
) -> Record:
    """The record of this process, which listens on `own_rails`."""
    shared = (-1, 0) if chosen.transport in ("tcp", "udp") else core.shm_file()
    digest = hashlib.sha256(json.dumps(planned).encode()).hexdigest()[:16] if planned else ""
    identity = chosen.host or records.host_identity()
    name = socket.gethostname()
    return Record(process, chosen.transport, over_udp, identity, os.getpid(), *shared, tuple(own_rails), digest, name)


def exchange_records(own: Record, others: Sequence[int], key: bytes, deadline: float) -> dict[int, Record]:
    """Publishes this process's record, and returns the others'.

    Raises:
      JaxcommError: a process is missing, its record is not signed with the key, or a rail is missing.
    """
    stages.publish("record", own.process, records.signed(own, key))
    published = stages.lookup_all("record", others, deadline, "come")
    peers = {other: records.verified(text, other, key) for other, text in published.items()}
    rails.check_missing([record.rails for record in [own, *peers.values()]])
    return peers
