"""The schedules that collectives between processes run without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

FLAT_BYTES: Final = 16 << 10  # in all-reduces of at most this size each rank sends its whole buffer to all other ranks
# On one host the limit is this number of bytes in all ranks' buffers together, because reading all buffers takes less
# time there than a second round.
FLAT_BYTES_ON_ONE_HOST: Final = 256 << 10
# The minimum size of a ring's chunks, in bytes: with one rank on every host, and with several ranks on a host.
RING_CHUNK_BYTES: Final = 256 << 10
RING_CHUNK_BYTES_OF_SEVERAL: Final = 32 << 10


def default_schedule(nbytes: int, hosts: Sequence[int]) -> Literal["flat", "direct", "ring"]:
    """The schedule of a call without a plan.

    In small all-reduces every rank sends its whole buffer to all ranks at once. The limit is higher on one host than
    between hosts. Large all-reduces use a ring if there are several hosts and the ranks of each host are consecutive.
    In a ring only one rank of each host sends to other hosts, and every NIC gets packets from one sender only. Packets
    from several senders would queue, and some would get lost. All other all-reduces use `direct`.

    Args:
      nbytes: bytes of the whole buffer.
      hosts: the host number of each rank.
    """
    ranks, number = len(hosts), len({*hosts})
    if nbytes <= FLAT_BYTES or (number == 1 and ranks * nbytes <= FLAT_BYTES_ON_ONE_HOST):
        return "flat"
    least = RING_CHUNK_BYTES if number == ranks else RING_CHUNK_BYTES_OF_SEVERAL
    hosts_are_runs = sum(hosts[rank - 1] != hosts[rank] for rank in range(ranks)) == number
    return "ring" if ranks > 2 and hosts_are_runs and nbytes >= ranks * least else "direct"


def bounds() -> tuple[int, int, int, int]:
    """The limits of `default_schedule` in bytes. The core applies them to the collectives of unchanged programs."""
    return FLAT_BYTES, FLAT_BYTES_ON_ONE_HOST, RING_CHUNK_BYTES, RING_CHUNK_BYTES_OF_SEVERAL
