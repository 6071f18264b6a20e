"""The first stages of connecting: the processes agree on a key and exchange signed records of themselves."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from jaxcomm import jax_compat
from jaxcomm.distributed.connect import records, secret, stages
from jaxcomm.distributed.connect.membership import MessageCore
from jaxcomm.distributed.connect.records import Record
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRails


class Introduced(NamedTuple):
    """The records of all processes, and the key and deadline of the next stages."""

    own: Record
    peers: dict[int, Record]
    key: bytes
    deadline: float

    @property
    def records(self) -> list[Record]:
        """This process's record, then the other processes' records."""
        return [self.own, *self.peers.values()]

    def sharing(self) -> list[int]:
        """The processes that share memory with this process."""
        return [other for other, peer in self.peers.items() if records.share_memory(self.own, peer)]

    def lookup(self, stage: str) -> dict[int, str]:
        """Returns the texts that the other processes published at a stage after "record"."""
        return stages.lookup_all(stage, self.peers, self.deadline, "connected")


def agree_on_key(process: int, first: int, chosen: Settings, generation: int, deadline: float) -> tuple[int, bytes]:
    """Returns the first process's generation number and the key. That process makes the secret unless a file has it.

    Raises:
      JaxcommError: the first process is missing, or only some processes have a secret file.
    """
    own = secret.read(chosen.secret_file) if chosen.secret_file else secret.new() if process == first else b""
    if process == first:
        stages.publish("generation", first, json.dumps([generation, "" if chosen.secret_file else own.hex()]))
    generation, published = json.loads(stages.lookup_all("generation", [first], deadline, "arrived")[first])
    if bool(published) == bool(chosen.secret_file):
        with_file, without = (process, first) if published else (first, process)
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
    planned: PlanRails | None,
) -> Record:
    """Returns the record of this process, which listens on `own_rails`."""
    shared = (-1, 0) if chosen.transport in ("tcp", "udp") else core.shm_file()
    digest = hashlib.sha256(json.dumps(planned).encode()).hexdigest()[:16] if planned else ""
    identity = chosen.host or records.host_identity()
    name = socket.gethostname()
    return Record(
        process=process,
        transport=chosen.transport,
        allows_udp=over_udp,
        host=identity,
        pid=os.getpid(),
        fd=shared[0],
        number=shared[1],
        rails=tuple(own_rails),
        planned=digest,
        host_name=name,
        incarnation=jax_compat.own_incarnation(),
        encrypts=chosen.encrypts,
        seals_by_aes=core.seals_by_aes(),
        udp_priorities=chosen.udp_priorities,
    )


def exchange_records(own: Record, others: Sequence[int], key: bytes, deadline: float) -> dict[int, Record]:
    """Publishes this process's record, and returns the other processes' records.

    Raises:
      JaxcommError: a process or a rail is missing, a record is not signed with the key, or processes differ in settings
        that must be equal.
    """
    stages.publish("record", own.process, records.signed(own, key))
    published = stages.lookup_all("record", others, deadline, "arrived")
    peers = {other: records.verified(text, other, key) for other, text in published.items()}
    records.check_settings([own, *peers.values()])
    rail_ends.check_missing([record.rails for record in [own, *peers.values()]])
    return peers
