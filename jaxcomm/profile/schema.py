"""The profile: measurements of a cluster, as frozen and validated values.

Times are in seconds, sizes in bytes. The module `files` reads, checks and writes profiles.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Count, Positive, Seconds, Text, Value, canonical
from jaxcomm.profile.cluster import Topology
from jaxcomm.profile.racks_and_rails import (
    Name,
    PacketLoss,
    Rack,
    Rail,
    RailName,
    Ratio,
    Sample,
    Share,
    check_hosts,
    check_racks,
    check_rails,
)
from jaxcomm.profile.timed_schedules import TimedSchedules, TriedSchedule
from jaxcomm.profile.tolerance import Tolerance

FORMAT: Final = "jaxcomm-profile"
VERSION: Final = 1
MAX_RANKS: Final = 65536
_CLUSTER: Final = (
    "hosts",
    "topology",
    "racks",
    "nics",
    "rails",
    "rail_shares",
    "cpu_cores",
    "incast",
    "packet_loss",
    "tolerance",
    "executors",
    "timed_schedules",
    "trials",
)

OpName = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send_recv"]
ScheduleName = Literal["ring", "direct"]
ExecutorName = Literal["fused", "messages", "nccl"]


class Link(Value):
    """The α–β model of one hop: a round that moves b bytes takes alpha_s + b * beta_s_per_byte.

    `alpha_assumed` says that `alpha_s` was not measured, so no plan may rely on it. `residual` is the rms residual of
    the logarithms of the fitted times (0 if nothing was fitted). The fitted times are the times of the `samples`, or
    the times that `source` names. `op` is the collective that the samples timed, and `schedule` is the schedule that
    the collective is assumed to have run. `source` notes how α and β were found, and which of them was assumed.
    """

    alpha_s: Seconds
    beta_s_per_byte: Seconds
    alpha_assumed: Annotated[bool, Field(strict=True)] = False
    samples: list[Sample] = []
    residual: Seconds = 0.0
    source: Text
    op: OpName = "all_reduce"
    schedule: ScheduleName = "ring"


class Bucket(Value):
    """A gradient bucket: its size, and the time in the step at which it is ready to be reduced."""

    name: Text
    bytes: Bytes
    ready_s: Seconds


class Collective(Value):
    """A measured whole allreduce: its size, and its seconds on the rank that arrives last."""

    bytes: Bytes
    seconds: Seconds


class Provenance(Value):
    """The origin of the numbers: file or machine, the tool and its versions, the time of measuring (ISO 8601, UTC)."""

    source: Text
    tool: Text
    versions: dict[str, Text] = {}
    created: Text = ""


class Profile(Value):
    """One group of ranks: the link, the ranks' arrivals, the gradient buckets, and how these were measured.

    `arrivals` has one row per step and one column per rank, in seconds after the first rank of that step ([]: unknown).
    `warmup_dropped` counts the warm-up steps that were left out. `hosts[r]` is the name of rank r's host ([]: unknown).
    With a `topology`, `link` is the link between two ranks on one host. `network` says how the other links differ.
    `racks` are the ranks under each switch. `nics[r]` is the factor by which a byte takes longer through rank r's NIC
    ([]: no NIC is slower). Several ranks may use one NIC. `incast` is the time of a byte between hosts if a host
    exchanges with several hosts at once, divided by the time of a byte in a ring (null: not measured). `packet_loss` is
    the packet loss of the worst link, and is assumed for all links. `rail_shares` has the share of a large buffer that
    each rail of the job carried while the job's links were measured ({}: the job had one rail). Each of the `rails` was
    timed alone. `cpu_cores` is the number of cores that all rails together may use (null: no limit). `executors` has
    allreduces timed on CUDA devices: our schedules as one kernel ("fused") or by sends and receives ("messages"), and
    NCCL's own allreduce ("nccl"). `timed_schedules` are whole schedules that were timed on the ranks' own executor.
    `trials` are schedules that runs have tried beside the default one.
    """

    format: Literal["jaxcomm-profile"] = FORMAT
    version: Literal[1] = VERSION
    ranks: Annotated[int, Field(ge=2, le=MAX_RANKS, strict=True)]
    link: Link
    arrivals: list[list[Seconds]] = []
    warmup_dropped: Count = 0
    buckets: list[Bucket] = []
    collective: Collective | None = None
    hosts: list[Name] = []
    topology: Topology | None = None
    racks: list[Rack] = []
    nics: list[Ratio] = []
    incast: Ratio | None = None
    rails: Annotated[list[Rail], Field(max_length=16)] = []
    rail_shares: Annotated[dict[RailName, Share], Field(max_length=64)] = {}
    cpu_cores: Positive | None = None
    packet_loss: PacketLoss | None = None
    tolerance: Tolerance | None = None
    executors: dict[ExecutorName, Link] = {}
    timed_schedules: TimedSchedules | None = None
    trials: Annotated[list[TriedSchedule], Field(max_length=256)] = []
    provenance: Provenance

    @pydantic.model_validator(mode="after")
    def _one_column_per_rank(self) -> Self:
        for step, row in enumerate(self.arrivals):
            if len(row) != self.ranks:
                raise ValueError(
                    f"arrivals[{step}] has {len(row)} times for {self.ranks} ranks; one per rank is needed"
                )
            if min(row) > 0:
                raise ValueError(
                    f"arrivals[{step}] says that every rank is late: the first is at {min(row):g} s, but times are "
                    "seconds after the first rank of that step; subtract the least of them from all"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _one_host_per_rank(self) -> Self:
        if self.hosts and len(self.hosts) != self.ranks:
            raise ValueError(f"hosts has {len(self.hosts)} names for {self.ranks} ranks; one per rank is needed")
        if self.topology and len(self.topology.hosts) != self.ranks:
            raise ValueError(
                f"topology.hosts has {len(self.topology.hosts)} entries for {self.ranks} ranks; one per rank is needed"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _one_cluster(self) -> Self:
        check_racks(self.racks, self.ranks)
        check_rails(self.rails, self.ranks)
        if self.rail_shares and abs((total := math.fsum(self.rail_shares.values())) - 1) > 1e-4:
            raise ValueError(f"rail_shares sum to {total:.9g}; they must sum to 1")
        if self.nics and len(self.nics) != self.ranks:
            raise ValueError(f"nics has {len(self.nics)} entries for {self.ranks} ranks; one per rank is needed")
        if self.racks and self.topology:
            check_hosts(self.racks, self.topology.hosts)
        return self

    @pydantic.model_validator(mode="after")
    def _executors_were_timed(self) -> Self:
        for name, link in self.executors.items():
            if link.op != "all_reduce" or not link.samples:
                problem = f"has {len(link.samples)} samples of {link.op}"
                raise ValueError(f"executors.{name} {problem}; at least one timed all_reduce is needed")
            if any(sample.seconds <= 0 for sample in link.samples):
                raise ValueError(f"executors.{name} has a sample of 0 s; a time must be above 0")
        return self

    @pydantic.model_validator(mode="after")
    def _late_rank_was_timed(self) -> Self:
        if self.timed_schedules and self.timed_schedules.late >= self.ranks:
            late = self.timed_schedules.late
            raise ValueError(f"timed_schedules.late is {late}; with {self.ranks} ranks it must be below {self.ranks}")
        return self

    @property
    def network(self) -> Topology | None:
        """The differences between the links that a call of all ranks uses; None if no difference is known.

        A profile with a topology gives that topology, with its hosts placed in the profile's racks. Without a topology,
        each rack counts as a host whose ranks share a NIC, and all uplinks get the rate of the slowest uplink. If NICs
        differ, each rank counts as a host instead.
        """
        found = self._network
        if len({*self.nics}) < 2:
            return found
        found = found or Topology(hosts=tuple(range(self.ranks)), nic="rank", slow=1.0)
        nics = dict(enumerate(self.nics))
        if found.nic == "host":  # a shared NIC is as slow as the slowest NIC of its ranks
            of_host = {host: max(nics[r] for r, at in enumerate(found.hosts) if at == host) for host in {*found.hosts}}
            nics = {rank: of_host[host] for rank, host in enumerate(found.hosts)}
        return found.model_copy(update={"nics": tuple(nics.values())})

    @property
    def _network(self) -> Topology | None:
        """The network without the differences between NICs."""
        slowest = max((rack.uplink for rack in self.racks), default=1.0)
        home = {rank: i for i, rack in enumerate(self.racks) for rank in rack.ranks}
        if self.topology and not self.topology.racks and len(self.racks) > 1:
            of_host = dict(zip(self.topology.hosts, (home[rank] for rank in range(self.ranks)), strict=True))
            racks = tuple(of_host[host] for host in range(len(of_host)))
            uplinks = tuple(rack.uplink for rack in self.racks)
            return self.topology.model_copy(update={"racks": racks, "uplinks": uplinks})
        if self.topology or len(self.racks) < 2 or slowest == 1:
            return self.topology
        if len({*self.nics}) > 1:
            ranks, uplinks = tuple(range(self.ranks)), tuple(rack.uplink for rack in self.racks)
            racks = tuple(home[rank] for rank in ranks)
            return Topology(hosts=ranks, nic="rank", slow=1.0, racks=racks, uplinks=uplinks)
        number = {rack: i for i, rack in enumerate(dict.fromkeys(home[rank] for rank in range(self.ranks)))}
        hosts = tuple(number[home[rank]] for rank in range(self.ranks))
        return Topology(hosts=hosts, nic="host", slow=slowest)

    def canonical_bytes(self) -> bytes:
        """The bytes that `hash` covers: JSON in UTF-8 with sorted keys and without spaces.

        Optional fields without a value are left out.
        """
        unknown: dict[str, Any] = {name: True for name in _CLUSTER if not getattr(self, name)}
        if self.tolerance and self.tolerance.trials is None:
            unknown["tolerance"] = {"trials"}
        if self.topology and not self.topology.racks:
            unknown["topology"] = {"racks", "uplinks"}
        measured = [name for name, link in self.executors.items() if not link.alpha_assumed]
        if measured:
            unknown["executors"] = {name: {"alpha_assumed"} for name in measured}
        if not self.link.alpha_assumed:
            unknown["link"] = {"alpha_assumed"}
        return canonical(self.model_dump(exclude=unknown))

    @property
    def hash(self) -> str:
        """Hex SHA-256 of the canonical bytes. Two profiles have equal hashes if and only if they are equal."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of profile.json, for editors and other programs."""
    return Profile.model_json_schema()
