"""Divides a round's messages into permutations, in which each rank sends to and receives from at most one peer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sized

Pair = tuple[int, int]  # source and target
_Peers = dict[int, dict[int, int]]  # rank -> permutation -> peer


def matchings(messages: Mapping[Pair, Sized]) -> list[list[Pair]]:
    """Divides the pairs into permutations, as few as possible.

    By König's theorem the number of permutations is the greatest number of peers that a rank has in one direction.

    Args:
      messages: messages by pair. The longest messages are placed first, so that the messages of a permutation have
        similar lengths.
    """
    targets: _Peers = defaultdict(dict)
    sources: _Peers = defaultdict(dict)
    for src, dst in sorted(messages, key=lambda pair: (-len(messages[pair]), (pair[1] - pair[0]), pair)):
        colour = _free(targets[src])
        if colour in sources[dst]:
            _swap(targets, sources, dst, colour, _free(sources[dst]))
        targets[src][colour], sources[dst][colour] = dst, src
    count = max((colour + 1 for peers in targets.values() for colour in peers), default=0)
    return [
        [(src, peers[colour]) for src, peers in sorted(targets.items()) if colour in peers] for colour in range(count)
    ]


def _free(peers: Mapping[int, int]) -> int:
    """The first permutation in which this rank has no peer."""
    return next(colour for colour in range(len(peers) + 1) if colour not in peers)


def _swap(targets: _Peers, sources: _Peers, dst: int, colour: int, other: int) -> None:
    """Swaps two permutations along the path from `dst` on which they alternate. Then `dst` has no peer in `colour`."""
    path: list[tuple[Pair, int]] = []
    node, mine, its = dst, sources, targets
    while colour in mine[node]:
        peer = mine[node][colour]
        path.append(((peer, node) if mine is sources else (node, peer), colour))
        node, mine, its, colour, other = peer, its, mine, other, colour
    for (src, target), old in path:
        del targets[src][old], sources[target][old]
    for (src, target), old in path:
        new = colour + other - old
        targets[src][new], sources[target][new] = target, src
