"""The parts of a profile on clusters whose links differ: racks, rails, lost packets.

Times are in seconds, sizes in bytes, shares between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Positive, Seconds, Value

Name = Annotated[str, Field(min_length=1, max_length=256)]
RailName = Annotated[str, Field(max_length=256)]  # "": the rail to the coordinator in a job that names no rails
Share = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e18, strict=True, allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=0, lt=65536, strict=True)]


MOST_LOST: Final = 0.5  # maximum share of lost packets; a link that loses more is broken and fits no model


def rail_shares(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The rails' shares of a buffer, by rail name; empty if no rail has a part.

    Args:
      parts: for every rail to every process, the rail's name and its part in units of 1/1024.
    """
    found: dict[str, float] = {}
    for rail, part in parts:
        found[rail] = found.get(rail, 0) + part
    total = sum(found.values())
    return {rail: part / total for rail, part in found.items()} if total else {}


class Sample(Value):
    """One timed collective: the whole buffer's bytes, and the seconds of one call."""

    bytes: Bytes
    seconds: Seconds


class Rack(Value):
    """Ranks under one switch. `uplink` is the time of a byte to another rack divided by its time within the rack."""

    name: Name
    ranks: Annotated[list[Rank], Field(min_length=1)]
    uplink: Ratio = 1.0


class PacketLoss(Value):
    """The packet loss of links: the share of packets lost, a packet's bytes, and TCP's retransmission timeout."""

    rate: Annotated[float, Field(ge=0, le=MOST_LOST, strict=True, allow_inf_nan=False)]
    packet_bytes: Bytes = 1460
    timeout_s: Seconds = 0.2


class Channels(Value):
    """Virtual rails: several parallel connections over the same NIC, and the allreduces timed over them, by size."""

    channels: Annotated[int, Field(ge=2, le=64, strict=True)]
    latency: Annotated[list[Sample], Field(min_length=1)]


class CoreRate(Value):
    """A rail's rate with `cores` CPU cores.

    The rail's latencies were measured with the number of cores that gives the highest rate.
    """

    cores: Positive
    bytes_per_s: Rate


class Rail(Value):
    """A separate network that all ranks share: NICs, switches, protocol.

    `latency` has the allreduces measured on this rail alone, in order of size. `bytes_per_s` is the NIC's nominal
    bandwidth. `slowdown` is the time of a call while other rails run, divided by its time while no other rail runs.
    `processor_s_per_byte` is a rank's processor time per byte of its buffer, at the largest size. `ranks` are the ranks
    that have the rail (null: all ranks).
    """

    name: RailName
    transport: Name
    latency: Annotated[list[Sample], Field(min_length=1)]
    bytes_per_s: Rate | None = None
    slowdown: Ratio = 1.0
    processor_s_per_byte: Seconds | None = None
    ranks: list[Rank] | None = None
    virtual: Annotated[list[Channels], Field(max_length=8)] = []
    cores: Annotated[list[CoreRate], Field(max_length=64)] = []
    packet_loss: PacketLoss | None = None

    @pydantic.model_validator(mode="after")
    def _tables_ascend(self) -> Self:
        tables = [("latency", self.latency)]
        tables += [(f"virtual[{i}].latency", each.latency) for i, each in enumerate(self.virtual)]
        for name, table in tables:
            for i in range(1, len(table)):
                if table[i].bytes <= table[i - 1].bytes:
                    raise ValueError(f"{name}[{i}].bytes is {table[i].bytes}; sizes must ascend")
        for i in range(1, len(self.cores)):
            if self.cores[i].cores <= self.cores[i - 1].cores:
                raise ValueError(f"cores[{i}].cores is {self.cores[i].cores}; counts must ascend")
        return self


def check_racks(racks: list[Rack], ranks: int) -> None:
    """Checks that rack names differ, and that every rank is in exactly one rack.

    Raises:
      ValueError: two racks have one name, or a rank is in two racks, in no rack, or out of range.
    """
    names: set[str] = set()
    home: dict[int, int] = {}
    for i, rack in enumerate(racks):
        if rack.name in names:
            raise ValueError(f'racks[{i}].name is "{rack.name}", which another rack has; names must differ')
        names.add(rack.name)
        for j, rank in enumerate(rack.ranks):
            if rank >= ranks:
                raise ValueError(f"racks[{i}].ranks[{j}] is {rank}; with {ranks} ranks it must be in [0, {ranks - 1}]")
            if rank in home:
                where = "twice" if home[rank] == i else f"and in racks[{home[rank]}]"
                raise ValueError(f"rank {rank} is in racks[{i}] {where}; a rank has one rack")
            home[rank] = i
    missing = sorted(set(range(ranks)) - set(home))
    if racks and missing:
        raise ValueError(f"rank {missing[0]} is in no rack; racks must hold every rank once")


def check_hosts(racks: list[Rack], hosts: Sequence[int]) -> None:
    """Checks that the ranks of a host are in one rack; `hosts[r]` is the host of rank r.

    Raises:
      ValueError: the racks cut a host in two.
    """
    home = {rank: i for i, rack in enumerate(racks) for rank in rack.ranks}
    first: dict[int, int] = {}
    for rank, host in enumerate(hosts):
        other = first.setdefault(host, rank)
        if home[rank] != home[other]:
            raise ValueError(
                f"racks[{home[rank]}] cuts host {host} of topology.hosts in two: it has rank {rank}, but rank {other} "
                f"is in racks[{home[other]}]; the ranks of a host are in one rack"
            )


def check_rails(rails: list[Rail], ranks: int) -> None:
    """Checks that rail names differ, and that all ranks share every rail.

    Raises:
      ValueError: two rails of one name, or a rail that some rank lacks.
    """
    names: set[str] = set()
    for i, rail in enumerate(rails):
        if rail.name in names:
            raise ValueError(f'rails[{i}].name is "{rail.name}", which another rail has; names must differ')
        names.add(rail.name)
        missing = sorted(set(range(ranks)) - set(rail.ranks)) if rail.ranks is not None else []
        if len(missing) >= ranks - 1:
            raise ValueError(f'rails[{i}], "{rail.name}", is shared by no two ranks; it can carry nothing')
        if missing:
            raise ValueError(
                f'rails[{i}], "{rail.name}", does not reach rank {missing[0]}; a rail must join all {ranks} ranks'
            )
