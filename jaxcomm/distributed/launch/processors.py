"""The processors of the processes that a launcher starts on this machine: an equal share for each.

Without shares of their own, two processes often run on one processor for a while, although another one is free, and
each process has as many threads of XLA as the machine has processors.
"""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def shares(processes: int) -> list[list[int]]:
    """Returns the processors of each process, or [] if this process's processors cannot be divided into equal shares.

    If there are more processes than processors, a share is one processor, which several processes have. A share's
    processors are close to each other: they belong to few sockets and few cores.
    """
    own = sorted(os.sched_getaffinity(0), key=_place)
    if len(own) % processes and processes % len(own):
        return []
    size = max(1, len(own) // processes)
    starts = [process * len(own) // processes for process in range(processes)]
    return [own[start : start + size] for start in starts]


def _place(processor: int) -> tuple[int, int, int]:
    """The processor's socket, its core on this socket and its number."""
    folder = _TOPOLOGY / f"cpu{processor}" / "topology"
    try:
        socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        socket = core = 0  # the kernel does not tell
    return socket, core, processor
