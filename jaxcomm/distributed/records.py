"""What each process publishes of itself for the others to connect with it, signed with the generation's key."""

from __future__ import annotations

import json
from typing import NamedTuple

from jaxcomm.distributed.rails import RailEnd
from jaxcomm.distributed.secret import is_mac, mac
from jaxcomm.errors import JaxcommError

_MOST_BYTES = 8192


class Record(NamedTuple):
    """One process.

    Attributes:
      process: its number in the job.
      transport: its JAXCOMM_TRANSPORT.
      udp_between_hosts: whether it would go over UDP to other hosts; all do where all would.
      host: processes with the same one can share memory.
      pid: of the process in its PID namespace.
      fd: of its shared-memory file there; -1 for none.
      number: that the file bears, by which it is known when it is opened.
      rails: over which it listens; none, if it only shares memory.
      planned: a digest of the shares that its plan gives rails; "" for none.
      host_name: of its host, for messages.
    """

    process: int
    transport: str
    udp_between_hosts: bool
    host: str
    pid: int
    fd: int
    number: int
    rails: tuple[RailEnd, ...]
    planned: str = ""
    host_name: str = ""


def signed(record: Record, key: bytes) -> str:
    """The text to publish.

    Raises:
      JaxcommError: it is longer than others would read.
    """
    content = json.dumps(record)
    text = f"{mac(key, 'record', content.encode()).hex()} {content}"
    if len(text) > _MOST_BYTES:
        raise JaxcommError(
            f"the record of process {record.process} has {len(text)} bytes; {_MOST_BYTES} is the most.\n"
            "  Cure: a shorter JAXCOMM_HOST, or fewer rails in JAXCOMM_RAILS."
        )
    return text


def verified(text: str, process: int, key: bytes) -> Record:
    """The record that a process has published.

    Raises:
      JaxcommError: it is not signed with this generation's key, or is another process's.
    """
    signature, _, content = text.partition(" ")
    if len(text) > _MOST_BYTES or not is_mac(_bytes(signature), key, "record", content.encode()):
        raise JaxcommError(
            f"the record of process {process} is not signed with this job's secret.\n"
            "  Cure: the same file JAXCOMM_SECRET_FILE, or none, for all processes."
        )
    record = Record(*json.loads(content))
    record = record._replace(rails=tuple(RailEnd(*each) for each in record.rails))
    if record.process != process:
        raise JaxcommError(
            f"process {process} published the record of process {record.process}.\n  Cure: start the job anew."
        )
    return record


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
