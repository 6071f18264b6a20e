"""Names that all processes agree on: the job's, and each process's host."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import jax

from jaxcomm.distributed import store


@store.cached
def job() -> str:
    """A name that all processes of the job have in common, and no other job has.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    store.publish("job", uuid.uuid4().hex)
    return store.lookup("job", "nobody has named the job")


@store.cached
def host(process: int) -> str:
    """The name of the host that a process runs on; where hosts or their /dev/shm differ, another name.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or the process has not published it after five minutes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    store.publish(f"host/{jax.process_index()}", f"{socket.gethostname()} {boot} {os.stat('/dev/shm').st_dev}")
    return store.lookup(f"host/{process}", f"process {process} has not published its host")
