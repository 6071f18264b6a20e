"""The processes that are connected, and the core that carries messages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from jaxcomm.distributed.rails import RailEnd
from jaxcomm.distributed.repair import RailsCore, Repair
from jaxcomm.distributed.udp_paths import UdpPath
from jaxcomm.ffi.shares import SharesFrom


class MessageCore(RailsCore, Protocol):
    """Carries messages between connected processes; one for each generation."""

    def shm_file(self) -> tuple[int, int]:
        """The descriptor of this process's shared-memory file, which the core keeps open, and the file's number."""

    def add_shm(self, process: int, fd: int, number: int) -> None:
        """Takes the descriptor of another process's file, which must have this number."""

    def open_rails(self, kind: str, names: list[str]) -> None:
        """Opens these rails, all "tcp" or "udp". All processes give the same names in the same order."""

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        """Sets the rails to a process, and every rail's share by smallest size; not called for one rail.

        Rails that are down count as cut once.
        """

    def add_tcp(self, process: int, rail: int, fd: int) -> None:
        """Takes a connected, authenticated, non-blocking socket."""

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        """Takes the sockets of a path."""

    def start(self, hosts: Sequence[int], host_names: Sequence[str]) -> None:
        """Starts the transport: all other processes have been added. Takes each process's host: its number and name."""

    def close(self) -> None:
        """Ends the generation: says goodbye to the other processes, and releases the connections."""


class Membership(NamedTuple):
    """The processes that are connected.

    Attributes:
      generation: counts the times that this job's processes were connected.
      process: this one.
      transports: of each process "shm", "tcp" or "udp", and "" for this one.
      hosts: of each process the first process on its host.
      is_over_udp: whether processes that share no memory go over UDP.
      strangers: connections that were closed because they did not belong to the job.
      core: carries messages between the processes.
      ends: the rails of this process.
      shares: of each process that is reached over the network, the shares of its rails.
      round_trips: by process and rail, the least so far in seconds, as far as the kernel knows them.
      repair: reconnects rails that are cut; None with fewer than two rails.
    """

    generation: int
    process: int
    transports: tuple[str, ...]
    hosts: tuple[int, ...]
    is_over_udp: bool
    strangers: int
    core: MessageCore
    ends: tuple[RailEnd, ...]
    shares: Mapping[int, Sequence[SharesFrom]]
    round_trips: Mapping[tuple[int, str], float]
    repair: Repair | None
