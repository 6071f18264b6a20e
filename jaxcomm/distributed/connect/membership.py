"""The processes that are connected, and the core that carries messages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails.rail_ends import FabricEnd, RailEnd
from jaxcomm.distributed.rails.repair import RailsCore, Repair
from jaxcomm.ffi.shares import SharesFrom

ABSENT: Final = 2**32 - 1  # the host number of a process that is not a member


class MessageCore(RailsCore, Protocol):
    """Carries messages between connected processes; one object for each generation."""

    def shm_file(self) -> tuple[int, int]:
        """Returns the descriptor and the number of this process's shared-memory file. The core owns the descriptor."""

    def add_shm(self, process: int, fd: int, number: int) -> None:
        """Takes the descriptor of another process's shared-memory file. Fails if the file's number is not `number`."""

    def open_fabric(self, rail: str, provider: str, domain: str) -> FabricEnd:
        """Opens the endpoint of a fabric rail. Raises JaxcommError if libfabric, the provider or the domain is missing.

        Must be called before `open_rails`, which closes the endpoints of unused rails.
        """

    def open_rails(self, rails: list[tuple[str, str]]) -> None:
        """Opens rails, each given as its kind and its name. All processes pass the same rails in the same order."""

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        """Sets which rails to a process are connected and which are down, and all shares. Not called for a single rail.

        Each entry of `shares` is the smallest call size of a range, and the rails' shares in this range. Rails that are
        down count as cut once.
        """

    def set_shares(self, process: int, shares: list[tuple[int, list[int]]]) -> None:
        """Changes the rails' shares of later messages to a process. Not called if there is only one rail."""

    def check_encryption(self) -> None:
        """Raises JaxcommError if this process cannot encrypt messages."""

    def seals_by_aes(self) -> bool:
        """Returns whether this process seals packets faster by AES than by SipHash."""

    def add_tcp(self, process: int, rail: int, fd: int, keys: CipherKeys | None) -> None:
        """Takes a connected, authenticated, non-blocking socket, and the keys if its bytes are to be encrypted."""

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        """Takes the sockets of a path."""

    def add_fabric(self, process: int, rail: int, path: FabricPath) -> None:
        """Takes the connection of a path."""

    def start(self, hosts: Sequence[int], host_names: Sequence[str], *, has_processor_each: bool) -> None:
        """Starts the transport, after all other members were added.

        Args:
          hosts: the host number of each process, or `ABSENT` if the process is not a member.
          host_names: the host name of each process, or "" if the process is not a member.
          has_processor_each: whether the processes of this host have at least one processor each.
        """

    def close(self, *, for_change: bool = False) -> None:
        """Ends the generation: notifies the other processes, and releases the connections."""


class Membership(NamedTuple):
    """The processes that are connected.

    Attributes:
      generation: the number of times that processes of this job were connected.
      process: the number of this process.
      incarnations: for each member, in ascending order, the number of the member's start.
      transports: for each process, "shm", or the kinds of the rails, as in "tcp" or "tcp+fabric"; "" for this process
        and for processes that are not members.
      hosts: for each process, the lowest-numbered process on the same host.
      host_names: for each member, a text that identifies its host.
      strangers: the number of connections that were closed because they did not belong to the job.
      core: the core that carries messages between the processes.
      ends: the rails of this process.
      rails: the names of the job's rails, the same in all processes; empty if all processes share memory.
      kinds: the kind of each of these rails: "tcp", "udp" or "fabric"; only the default kind if `rails` is empty.
      shares: the rails' shares to each process that is reached over the network.
      round_trips: for each process and rail, the lowest RTT at the start, in seconds; omits RTTs that the kernel does
        not know.
      repair: the object that reconnects cut rails; None with fewer than two rails.
    """

    generation: int
    process: int
    incarnations: Mapping[int, int]
    transports: tuple[str, ...]
    hosts: tuple[int, ...]
    host_names: Mapping[int, str]
    strangers: int
    core: MessageCore
    ends: tuple[RailEnd, ...]
    rails: tuple[str, ...]
    kinds: tuple[str, ...]
    shares: Mapping[int, Sequence[SharesFrom]]
    round_trips: Mapping[tuple[int, str], float]
    repair: Repair | None

    @property
    def is_over_udp(self) -> bool:
        """Whether processes that share no memory use only UDP."""
        return all(kind == "udp" for kind in self.kinds)

    def set_shares(self, process: int, shares: Sequence[SharesFrom]) -> None:
        """Sets the rails' shares of later messages to a process. There must be several rails."""
        self.core.set_shares(process, [(low, [each.get(name, 0) for name in self.rails]) for low, each in shares])
