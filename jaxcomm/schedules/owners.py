"""The owners of chunks where links have unlike rates: a rank whose link is faster sums more of the chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from typing import Final, NamedTuple

_PARTS: Final = 1 << 20  # that shares are rounded to, so that turns are the same on every machine
_HALVINGS: Final = 60


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
    # Two like nodes leave nothing to share out: each link carries a chunk once each way, with any owner.
    return _normal(shares if sum(shares) > 1e-9 * nodes else [1.0] * nodes)


def lane_shares(nics: Sequence[float]) -> list[float]:
    """The share of the chunks that each rank of a host exchanges with other hosts, through a NIC of its own.

    A rank with a share a sums these for its host, so its port within carries 1 + (m−2)·a buffers each way; its NIC is
    busy for `nics[i]` times a. The shares are those with which the busiest of all these is done as early as it can be.

    Args:
      nics: by rank, how many times as long as a buffer within the host its NIC takes for what leaves the host.
    """
    inner = len(nics) - 2

    def shares(time: float) -> list[float]:
        most = (time - 1) / inner if inner > 0 else 1.0
        return [max(0.0, min(most, time / nic)) for nic in nics]

    return _normal(shares(_least(lambda time: sum(shares(time)) >= 1, 2 + inner + sum(nics))))


def turns(shares: Sequence[float], kinds: Sequence[Hashable]) -> list[int]:
    """The owner of each chunk, by turns in proportion to the shares, among the chunks of each kind.

    Every node earns its share at every turn; the one that has earned most, of several the first, owns the chunk and
    pays a whole one.

    Args:
      shares: wᵢ, which sum to 1.
      kinds: by chunk, what it costs its owner; the nodes get their shares of every kind.
    """
    parts = [round(share * _PARTS) for share in shares]
    earned: dict[Hashable, list[int]] = {kind: [0] * len(parts) for kind in kinds}
    found = []
    for kind in kinds:
        has = earned[kind] = [before + part for before, part in zip(earned[kind], parts, strict=True)]
        owner = has.index(max(has))
        has[owner] -= sum(parts)
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
    out = [[host in late for host in members] for members in racks]
    is_out = [all(each) for each in out]
    top_shares = _among(is_out, uplinks) if late and not all(is_out) else rack_shares(racks, hosts, uplinks)
    tops = turns(top_shares, [None] * count)
    places = []
    for rack, members in enumerate(racks):
        slowness = [hosts[host] for host in members]
        if any(out[rack]) and not is_out[rack]:
            shares = _among(out[rack], slowness)
        else:
            shares = balanced(slowness, _owned(len(members), len(racks), top_shares[rack]))
        places.append(turns(shares, [rack == top for top in tops]))
    return [Roots(top, tuple(each)) for top, *each in zip(tops, *places, strict=True)]


def rack_shares(racks: Sequence[Sequence[int]], hosts: Sequence[float], uplinks: Sequence[float]) -> list[float]:
    """The share of the chunks that each rack sums, with which its uplink and its hosts are done as early as those of
    the others; for the arguments see `roots`."""
    count = len(racks)
    if count < 3:  # both uplinks carry every chunk once, on whichever side its owner is
        return [1 / count] * count

    def shares(time: float) -> list[float]:
        found = []
        for members, uplink in zip(racks, uplinks, strict=True):
            room = sum(max(0.0, time / hosts[host] - 1) for host in members) - _owned(len(members), count, 0.0)
            found.append(max(0.0, min(time / uplink - 1, room)) / (count - 2))
        return found

    return _normal(shares(_least(lambda time: sum(shares(time)) >= 1, 2.0 * len(hosts) * max(*hosts, *uplinks))))


def _least(is_enough: Callable[[float], bool], most: float) -> float:
    """The least number up to `most`, which is enough, that is."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _owned(hosts: int, racks: int, top: float) -> float:
    """Chunks that the NIC of a rack's root carries each way beyond one; its rack sums a share `top` of them for all."""
    return hosts - 2 + (1 + (racks - 2) * top if racks > 1 else 0)


def _among(absent: Sequence[bool], slowness: Sequence[float]) -> list[float]:
    return _normal([0.0 if out else 1 / each for out, each in zip(absent, slowness, strict=True)])


def _normal(shares: Sequence[float]) -> list[float]:
    return [share / sum(shares) for share in shares]
