"""The owners of chunks where links have unlike rates: a rank whose link is faster sums more of the chunks."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

_PARTS: Final = 1 << 20  # that shares are rounded to, so that turns are the same on every machine


def balanced(slowness: Sequence[float], owned: float | None = None) -> list[float]:
    """The share of the chunks that each node owns, with which all links are done at once.

    Of a chunk, a node sends its part to the owner and gets the sum back: one chunk each way. The owner receives the
    parts of the other n − 1 and sends the sum to them. So node i's link carries 1 + (n−2)·wᵢ buffers each way, and is
    done at T with wᵢ = (T/rᵢ − 1)/(n−2). With T = max(max rᵢ, 2(n−1)/Σ 1/rᵢ), which no all-reduce can beat, the shares
    sum to 1 at least; a node with rᵢ = T owns nothing.

    Args:
      slowness: rᵢ, how many times as long a byte takes through node i's link, above 0.
      owned: chunks that the owner's link carries each way beyond the one of the others; None: n − 2.

    Returns:
      Shares wᵢ that sum to 1.
    """
    nodes = len(slowness)
    owned = nodes - 2 if owned is None else owned
    least = max(*slowness, (owned + nodes) / sum(1 / each for each in slowness), 0.0)
    shares = [least / each - 1 for each in slowness]
    # Links that are alike may leave nothing to share out, as those of two nodes do: whoever owns a chunk, each carries one.
    return _normal(shares if sum(shares) > 1e-9 * nodes else [1.0] * nodes)


def by_rate(slowness: Sequence[float]) -> list[float]:
    """Shares in proportion to the links' rates 1/rᵢ, which sum to 1: of chunks that only their owner's link carries."""
    return _normal([1 / each for each in slowness])


def turns(shares: Sequence[float], count: int) -> list[int]:
    """The owner of each of `count` chunks, by turns in proportion to the shares.

    Every node earns its share at every turn; the one that has earned most, of several the first, owns the chunk and
    pays a whole one.
    """
    parts = [round(share * _PARTS) for share in shares]
    earned, found = [0] * len(parts), []
    for _ in range(count):
        earned = [has + part for has, part in zip(earned, parts, strict=True)]
        owner = earned.index(max(earned))
        earned[owner] -= sum(parts)
        found.append(owner)
    return found


class Roots(NamedTuple):
    """The rack that sums a chunk of all, and by rack the place of the host that sums those of its hosts."""

    rack: int
    hosts: tuple[int, ...]


def roots(
    racks: Sequence[Sequence[int]], hosts: Sequence[float], uplinks: Sequence[float], late: Set[int], count: int
) -> list[Roots]:
    """The roots of each of `count` chunks.

    Args:
      racks: the hosts of each rack.
      hosts: by host, how many times as long a byte takes through its NICs.
      uplinks: the same by rack, through its uplink.
      late: hosts whose part the others do not await: these own chunks by their rates, as only results leave them then.
    """
    absent = [not {*members} - late for members in racks]
    tops = turns(_among(absent, uplinks) if late and not all(absent) else balanced(uplinks), count)
    places: list[list[int]] = []
    for rack, members in enumerate(racks):
        slowness = [hosts[host] for host in members]
        out = [host in late for host in members]
        if any(out) and not all(out):
            shares = _among(out, slowness)
        else:  # the root's NIC also carries what its rack exchanges with the others
            apart = 1 + (len(racks) - 2) * tops.count(rack) / max(1, count) if len(racks) > 1 else 0
            shares = balanced(slowness, len(members) - 2 + apart) if len(members) > 1 else [1.0]
        own = [rack == top for top in tops]
        # Its hosts take turns among the chunks of which the rack sums all, and among the others.
        first, second = iter(turns(shares, sum(own))), iter(turns(shares, count - sum(own)))
        places.append([next(first if mine else second) for mine in own])
    return [Roots(top, tuple(each)) for top, *each in zip(tops, *places, strict=True)]


def _among(absent: Sequence[bool], slowness: Sequence[float]) -> list[float]:
    return _normal([0.0 if out else 1 / each for out, each in zip(absent, slowness, strict=True)])


def _normal(shares: Sequence[float]) -> list[float]:
    return [share / sum(shares) for share in shares]
