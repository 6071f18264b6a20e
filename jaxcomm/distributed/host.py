"""Which processes can share memory: those of one host, that is one kernel, PID namespace and user."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from jaxcomm.distributed.records import Record
from jaxcomm.errors import JaxcommError


def identity() -> str:
    """The same for processes that can open each other's files by /proc/PID/fd/FD, and different for others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} uid:{os.getuid()}"


def between_hosts(records: Iterable[Record]) -> str:
    """ "tcp" or "udp", between processes that share no memory, of all those of the job."""
    return "udp" if all(record.udp_between_hosts for record in records) else "tcp"


def share_memory(one: Record, other: Record) -> bool:
    """Whether two processes go over shared memory; the same whichever of them asks.

    Raises:
      JaxcommError: they were told different things, or to share memory that they do not have in common.
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
    """A descriptor of the peer's shared-memory file.

    Raises:
      JaxcommError: it cannot be opened, though the peer is on this host.
    """
    path = f"/proc/{peer.pid}/fd/{peer.fd}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise JaxcommError(
            f"the shared memory of process {peer.process}, {path}, cannot be opened: {error.strerror}.\n"
            "  Cure: run both as one user in one PID namespace, or JAXCOMM_TRANSPORT=tcp for all processes."
        ) from error
