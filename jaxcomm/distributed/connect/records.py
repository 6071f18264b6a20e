"""The job's name, and the values that each process publishes: the numbers of its devices and a signed record.

The records determine how two processes are connected: over shared memory within a host (one kernel, PID namespace and
user), else over TCP, UDP or libfabric.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomm.distributed import store
from jaxcomm.distributed.connect.secret import is_mac, mac
from jaxcomm.distributed.rails.rail_ends import FabricEnd, RailEnd
from jaxcomm.environment import ENCRYPT, UDP_PRIORITIES
from jaxcomm.errors import JaxcommError

_MOST_BYTES = 8192


class Record(NamedTuple):
    """A process, as it describes itself to the other processes.

    Attributes:
      process: the number of the process in the job.
      transport: the process's JAXCOMM_TRANSPORT.
      allows_udp: whether the process allows UDP between hosts. UDP is used if all processes allow it.
      host: the identity of the process's host. Processes with equal identities can share memory.
      pid: the process's ID in its PID namespace.
      fd: the process's descriptor of its shared-memory file; -1 if it has no such file.
      number: the number stored in this file. Another process checks the number when it opens the file.
      rails: the process's ends of rails; empty if it uses only shared memory.
      planned: a digest of the rails and shares of the process's plan; "" without a plan.
      host_name: the name of the process's host, for error texts and log lines.
      incarnation: the number of this start of the process.
      encrypts: whether the process encrypts its messages to other hosts.
      seals_by_aes: whether the process seals packets faster by AES than by SipHash.
      udp_priorities: the process's JAXCOMM_UDP_PRIORITIES.
    """

    process: int
    transport: str
    allows_udp: bool
    host: str
    pid: int
    fd: int
    number: int
    rails: tuple[RailEnd, ...]
    planned: str = ""
    host_name: str = ""
    incarnation: int = 0
    encrypts: bool = False
    seals_by_aes: bool = False
    udp_priorities: int = 1


@store.cached
def job_name() -> str:
    """Returns a name that is the same in all processes of the job, and in no other job.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    store.publish("job", uuid.uuid4().hex)
    return store.lookup("job", "no process has named the job")


def hardware_number(device: jax.Device) -> int:
    """Returns a device's number in its process's runtime, such as CUDA.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or the device's process has not published the number
        within five minutes.
    """
    if device.process_index == jax.process_index():
        number: int = device.local_hardware_id
        return number
    return _hardware_numbers(device.process_index, device.platform)[str(device.id)]


@store.cached
def _hardware_numbers(process: int, platform: str) -> dict[str, int]:
    here = {device.id: device.local_hardware_id for device in jax.local_devices(backend=platform)}
    store.publish(f"{platform}/{jax.process_index()}", json.dumps(here))
    numbers: dict[str, int] = json.loads(
        store.lookup(f"{platform}/{process}", f"process {process} has not published its devices")
    )
    return numbers


def host_identity() -> str:
    """Returns a text that is equal for processes that can open each other's files by /proc/PID/fd/FD."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} uid:{os.getuid()}"


def transport(records: Iterable[Record]) -> str:
    """Returns the transport between processes that share no memory: "udp" if all processes allow UDP, else "tcp"."""
    return "udp" if all(record.allows_udp for record in records) else "tcp"


def check_settings(records: Iterable[Record]) -> None:
    """Raises JaxcommError if processes differ in settings that must be equal: encryption and priorities."""
    records = sorted(records, reverse=True)
    for name, values in (
        (ENCRYPT, {"on" if record.encrypts else "off": record.process for record in records}),
        (UDP_PRIORITIES, {str(record.udp_priorities): record.process for record in records}),
    ):
        if len(values) > 1:
            found = sorted((process, value) for value, process in values.items())
            raise JaxcommError(
                f"{name} is {' and '.join(f'{value} in process {process}' for process, value in found)}.\n"
                "  Cure: the same for all processes."
            )


def seals(one: Record, other: Record) -> str:
    """Returns how UDP packets between two processes are sealed: by "gcm", "gmac" or "siphash"."""
    if one.encrypts:
        return "gcm"
    return "gmac" if one.seals_by_aes and other.seals_by_aes else "siphash"


def share_memory(one: Record, other: Record) -> bool:
    """Returns whether two processes use shared memory. Both processes get the same result.

    Raises:
      JaxcommError: the processes' settings conflict, or require shared memory between different hosts.
    """
    first, second = sorted((one, other))
    if first.transport != second.transport:
        raise JaxcommError(
            f"JAXCOMM_TRANSPORT is {first.transport} in process {first.process} and {second.transport} in process "
            f"{second.process}.\n  Cure: the same for all processes."
        )
    if first.transport == "shm" and first.host != second.host:
        raise JaxcommError(
            f"JAXCOMM_TRANSPORT is shm, but process {first.process} (host {first.host}) and process {second.process} "
            f"(host {second.host}) share no memory.\n  Cure: JAXCOMM_TRANSPORT=auto, or tcp."
        )
    return first.transport not in ("tcp", "udp") and first.host == second.host


def open_shared_memory(peer: Record) -> int:
    """Returns a descriptor of the peer's shared-memory file.

    Raises:
      JaxcommError: the file cannot be opened, though the peer is on this host.
    """
    path = f"/proc/{peer.pid}/fd/{peer.fd}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise JaxcommError(
            f"the shared memory of process {peer.process}, {path}, cannot be opened: {error.strerror}.\n"
            "  Cure: run both as one user in one PID namespace, or JAXCOMM_TRANSPORT=tcp for all processes."
        ) from error


def signed(record: Record, key: bytes) -> str:
    """Returns the record as a signed text, to be published.

    Raises:
      JaxcommError: the text is longer than `verified` accepts.
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
    """Returns the record that a process has published.

    Raises:
      JaxcommError: the record is not signed with this generation's key, or is another process's.
    """
    signature, _, content = text.partition(" ")
    if len(text) > _MOST_BYTES or not is_mac(_bytes(signature), key, "record", content.encode()):
        raise JaxcommError(
            f"the record of process {process} is not signed with this job's secret.\n"
            "  Cure: give all processes the same JAXCOMM_SECRET_FILE, or none."
        )
    record = Record(*json.loads(content))
    record = record._replace(rails=tuple(_rail(*each) for each in record.rails))
    if record.process != process:
        raise JaxcommError(
            f"process {process} published the record of process {record.process}.\n  Cure: start the job anew."
        )
    return record


def _rail(*fields: Any) -> RailEnd:
    rail = RailEnd(*fields)
    return rail if rail.fabric is None else rail._replace(fabric=FabricEnd(*rail.fabric))


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
