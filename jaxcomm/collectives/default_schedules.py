"""The schedules of collectives between processes that follow no plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

FLAT_BYTES: Final = 16 << 10  # the most of an all-reduce in which each rank sends its whole buffer to all others
# The same on one host, of all ranks' buffers together: reading them takes less time there than a second round.
FLAT_BYTES_ON_ONE_HOST: Final = 256 << 10
# The least of a rank's chunk in a ring: where each host has one rank, and where hosts have several.
RING_CHUNK_BYTES: Final = 256 << 10
RING_CHUNK_BYTES_OF_SEVERAL: Final = 32 << 10


def default_schedule(nbytes: int, hosts: Sequence[int]) -> Literal["flat", "direct", "ring"]:
    """The schedule of a call without a plan.

    Few bytes of an all-reduce go to all ranks at once, on one host more than between hosts. Many go round a ring where
    ranks are on several hosts, those of each host one after the other: of several senders to one NIC each waits for the
    others' packets, and some of these get lost; and of a host's ranks only one sends to others.

    Args:
      nbytes: bytes of the whole buffer.
      hosts: by rank, a number of its host.
    """
    ranks, number = len(hosts), len({*hosts})
    if nbytes <= FLAT_BYTES or (number == 1 and ranks * nbytes <= FLAT_BYTES_ON_ONE_HOST):
        return "flat"
    least = RING_CHUNK_BYTES if number == ranks else RING_CHUNK_BYTES_OF_SEVERAL
    hosts_are_runs = sum(hosts[rank - 1] != hosts[rank] for rank in range(ranks)) == number
    return "ring" if ranks > 2 and hosts_are_runs and nbytes >= ranks * least else "direct"


def bounds() -> tuple[int, int, int, int]:
    """The bounds of `default_schedule` in bytes, as the core takes them for unchanged programs."""
    return FLAT_BYTES, FLAT_BYTES_ON_ONE_HOST, RING_CHUNK_BYTES, RING_CHUNK_BYTES_OF_SEVERAL
