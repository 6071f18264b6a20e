"""The rotational template of a straggler schedule: four tables of small integers, whatever the number of chunks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """Who sends what to whom in one round, relative to the rank whose turn it is.

    Write N for the number of ranks that are not late. In round r the rank of offset o is the one with index
    (r + o) mod N among these N. It sends chunk r − send_age[o] to the rank of offset send_peer[o] and receives chunk
    r − receive_age[o] from the rank of offset receive_peer[o]. Peer N is the late rank; peer −1 is nobody.

    Attributes:
      ranks: number of ranks n = N + 1, the late one included.
      colours: colour of each age 1, 2, ..., A; it says which of the last chunks a chunk beyond the last stands for.
      send_peer: offset that offset o sends to, length N.
      send_age: rounds since the chunk that offset o sends first left the late rank, length N.
      receive_peer: offset that offset o receives from, length N.
      receive_age: rounds since the chunk that offset o receives first left the late rank, length N.
    """

    ranks: int
    colours: tuple[int, ...]
    send_peer: tuple[int, ...]
    send_age: tuple[int, ...]
    receive_peer: tuple[int, ...]
    receive_age: tuple[int, ...]
