"""The schema of testbed files: rails, racks, hosts and faults, and the checks of a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.testbed.switch_schema import HEADER_BYTES, TestbedSwitch

Mbit = Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
CutKind = Literal["silent", "one-way", "down", "slow", "reset", "no-udp", "renumbered"]

CONTROL: Final = "control"  # the coordinator's network, whose rate is not limited
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,8}")  # short, because Linux limits an interface's name to 15 characters


class TestbedRail(Value):
    """A network that connects all hosts. `mbit` is the rate of each host's link to the rail in Mbit/s, each way."""

    name: str
    mbit: Mbit


class TestbedRack(Value):
    """Hosts behind one switch. `uplink_mbit` is the rate of the rack's uplink in each rail in Mbit/s, each way.

    With spines, a rack has no uplink: its switch is a leaf, which has a link to each spine.
    """

    name: str
    uplink_mbit: Mbit | None = None


class SpineCut(Value):
    """A spine that fails `at_s` seconds after the start. It is repaired `repaired_s` seconds after the start, or never.

    The spine's links lose all packets or, if `mbit` is given, have this rate.
    """

    at_s: Seconds
    repaired_s: Seconds | None = None
    mbit: Mbit | None = None


class TestbedSpine(Value):
    """A switch that connects all racks. `mbit` is the rate of its link to each rack in each rail in Mbit/s, each way.

    `cuts` are the times when it fails.
    """

    name: str
    mbit: Mbit
    cuts: Annotated[tuple[SpineCut, ...], Field(max_length=64)] = ()


class TestbedHost(Value):
    """A host: its rack, if there are racks, and its number of processes.

    `delay_s` is the delay of the host in every step, in seconds. Processes find the delay in JAXCOMM_TESTBED_DELAY_S.
    """

    name: str
    rack: str | None = None
    processes: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    delay_s: Seconds = 0.0


class LossyLink(Value):
    """A link that loses each packet with probability `rate`, each way. With only one rail, `rail` may be omitted."""

    host: str
    rail: str | None = None
    rate: Annotated[float, Field(ge=1e-6, le=0.5, allow_inf_nan=False)]


class Cut(Value):
    """A link that is cut `at_s` seconds after the start. It is repaired `repaired_s` seconds after the start, or never.

    "silent": packets disappear, and neither end gets an error. "one-way": packets to the host disappear. "down": the
    host's interface loses its carrier. "slow": the rate becomes `mbit`, by default 8 kbit/s. "reset": the host answers
    TCP packets with resets. "no-udp": UDP packets to the host disappear. "renumbered": the host's interface has another
    address.
    """

    host: str
    rail: str | None = None
    at_s: Seconds
    repaired_s: Seconds | None = None
    kind: CutKind = "silent"
    mbit: Mbit | None = None


class Flow(Value):
    """Background traffic: one TCP connection from `src` to `dst`, which sends at full speed."""

    src: str
    dst: str
    rail: str | None = None
    start_s: Seconds = 0.0
    stop_s: Seconds | None = None


class Testbed(Value):
    """Hosts, the rails that connect them, and faults. Seconds count from the start of the processes.

    `mtu` is the MTU of every rail, in bytes. `congestion_control` is the congestion control of TCP. If `switch` is
    given, jaxcomm's own switch connects the hosts. Otherwise kernel bridges connect the hosts. With `spines`, the
    switch is a leaf-spine network: a packet to a host of another rack crosses the spine that a hash of its addresses,
    protocol and ports selects (ECMP).
    """

    __test__ = False  # tells pytest that this is not a test class

    mtu: Annotated[int, Field(ge=1280, le=9000, strict=True)] = 1500
    congestion_control: Literal["cubic", "reno", "bbr"] = "cubic"
    switch: TestbedSwitch | None = None
    rails: Annotated[tuple[TestbedRail, ...], Field(min_length=1, max_length=8)]
    racks: Annotated[tuple[TestbedRack, ...], Field(max_length=16)] = ()
    spines: Annotated[tuple[TestbedSpine, ...], Field(max_length=8)] = ()
    hosts: Annotated[tuple[TestbedHost, ...], Field(min_length=2, max_length=32)]
    packet_loss: Annotated[tuple[LossyLink, ...], Field(max_length=512)] = ()
    cuts: Annotated[tuple[Cut, ...], Field(max_length=512)] = ()
    flows: Annotated[tuple[Flow, ...], Field(max_length=64)] = ()

    @pydantic.model_validator(mode="after")
    def _names_are_names(self) -> Self:
        named: dict[str, Sequence[TestbedRail | TestbedRack | TestbedSpine | TestbedHost]] = {
            "rails": self.rails,
            "racks": self.racks,
            "spines": self.spines,
            "hosts": self.hosts,
        }
        for kind, items in named.items():
            seen: set[str] = set()
            for i, item in enumerate(items):
                where = f'{kind}[{i}].name is "{item.name}"'
                if not _NAME.fullmatch(item.name):
                    raise ValueError(f"{where}; a name has 1 to 9 letters a to z and digits, and begins with a letter")
                if item.name in seen:
                    raise ValueError(f"{where}, which another of the {kind} has; names must differ")
                if kind == "rails" and item.name in ("lo", CONTROL):
                    raise ValueError(f"{where}, which every host has already; choose another name")
                seen.add(item.name)
        return self

    @pydantic.model_validator(mode="after")
    def _the_switch_takes_packets(self) -> Self:
        if self.switch is None:
            return self
        if self.racks and not self.spines:
            raise ValueError(
                "switch is given beside racks; all hosts meet in one switch, so leave out the racks, or add spines"
            )
        if self.switch.plan is None and self.switch.buffer_bytes < self.mtu + HEADER_BYTES:
            raise ValueError(
                f"switch.buffer_bytes is {self.switch.buffer_bytes}; a packet has up to {self.mtu + HEADER_BYTES}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _spines_connect_racks(self) -> Self:
        for i, rack in enumerate(self.racks):
            if rack.uplink_mbit is None and not self.spines:
                raise ValueError(f"racks[{i}].uplink_mbit is missing; without spines, every rack has an uplink")
            if rack.uplink_mbit is not None and self.spines:
                raise ValueError(f"racks[{i}].uplink_mbit is given beside spines, whose rates count; leave it out")
        if not self.spines:
            return self
        if self.switch is None:
            raise ValueError("spines are given without a switch, which they are part of; add a table [switch]")
        if len(self.spines) == 1 or len(self.racks) < 2:
            raise ValueError(
                f"spines has {len(self.spines)} entries and racks {len(self.racks)}; "
                "a leaf-spine network has at least 2 of each"
            )
        for i, spine in enumerate(self.spines):
            for j, cut in enumerate(spine.cuts):
                where = f"spines[{i}].cuts[{j}]"
                if cut.repaired_s is not None and cut.repaired_s <= cut.at_s:
                    raise ValueError(f"{where}.repaired_s is {cut.repaired_s:g}; it must come after at_s, {cut.at_s:g}")
                if any(_overlap(cut, other) for other in spine.cuts[:j]):
                    raise ValueError(f"{where} begins before an earlier cut of the same spine is repaired")
        return self

    @pydantic.model_validator(mode="after")
    def _every_host_has_its_rack(self) -> Self:
        names = [rack.name for rack in self.racks]
        for i, host in enumerate(self.hosts):
            if host.rack is None and names:
                raise ValueError(f"hosts[{i}].rack is missing; with racks, every host is in one of {_listed(names)}")
            if host.rack is not None and host.rack not in names:
                raise ValueError(f'hosts[{i}].rack is "{host.rack}"; {_known("racks", names)}')
        used = {host.rack for host in self.hosts}
        for i, name in enumerate(names):
            if name not in used:
                raise ValueError(f'racks[{i}], "{name}", has no host; give it one, or leave it out')
        return self

    @pydantic.model_validator(mode="after")
    def _what_goes_wrong_has_a_place(self) -> Self:
        hosts, rails = [host.name for host in self.hosts], [rail.name for rail in self.rails]
        wrong: dict[str, Sequence[LossyLink | Cut | Flow]] = {
            "packet_loss": self.packet_loss,
            "cuts": self.cuts,
            "flows": self.flows,
        }
        for kind, items in wrong.items():
            for i, item in enumerate(items):
                ends = {"src": item.src, "dst": item.dst} if isinstance(item, Flow) else {"host": item.host}
                for field, name in ends.items():
                    if name not in hosts:
                        raise ValueError(f'{kind}[{i}].{field} is "{name}"; {_known("hosts", hosts)}')
                if item.rail is None and len(rails) > 1:
                    raise ValueError(f"{kind}[{i}].rail is missing; there are several, {_listed(rails)}")
                if item.rail is not None and item.rail not in rails:
                    raise ValueError(f'{kind}[{i}].rail is "{item.rail}"; {_known("rails", rails)}')
        return self

    @pydantic.model_validator(mode="after")
    def _times_ascend(self) -> Self:
        for i, cut in enumerate(self.cuts):
            if cut.mbit is not None and cut.kind != "slow":
                raise ValueError(f'cuts[{i}].mbit is {cut.mbit:g}; only a cut of kind "slow" may have mbit')
            if cut.repaired_s is not None and cut.repaired_s <= cut.at_s:
                raise ValueError(f"cuts[{i}].repaired_s is {cut.repaired_s:g}; it must come after at_s, {cut.at_s:g}")
        for i, flow in enumerate(self.flows):
            if flow.stop_s is not None and flow.stop_s <= flow.start_s:
                raise ValueError(f"flows[{i}].stop_s is {flow.stop_s:g}; it must come after start_s, {flow.start_s:g}")
            if flow.src == flow.dst:
                raise ValueError(f'flows[{i}].dst is "{flow.dst}", its src; a flow joins two hosts')
        return self

    @pydantic.model_validator(mode="after")
    def _one_event_at_a_time(self) -> Self:
        loses: dict[tuple[str, str], int] = {}
        for i, loss in enumerate(self.packet_loss):
            other = loses.setdefault((loss.host, self.rail_of(loss)), i)
            if other != i:
                raise ValueError(
                    f"packet_loss[{i}] is for the same link as packet_loss[{other}]; a link has one rate of packet loss"
                )
        for i, cut in enumerate(self.cuts):
            for j, other_cut in enumerate(self.cuts[:i]):
                if (cut.host, self.rail_of(cut)) == (other_cut.host, self.rail_of(other_cut)) and _overlap(
                    cut, other_cut
                ):
                    raise ValueError(f"cuts[{i}] begins before cuts[{j}] of the same link is repaired")
        return self

    def rail_of(self, item: LossyLink | Cut | Flow) -> str:
        """Returns the rail that an item names or, if it names none, the only rail of the testbed."""
        return item.rail or self.rails[0].name

    @property
    def processes(self) -> int:
        """The number of processes on all hosts."""
        return sum(host.processes for host in self.hosts)


def _overlap(one: Cut | SpineCut, other: Cut | SpineCut) -> bool:
    first, second = sorted((one, other), key=lambda cut: cut.at_s)
    return first.repaired_s is None or second.at_s < first.repaired_s


def _known(kind: str, names: Sequence[str]) -> str:
    return f"the {kind} are {_listed(names)}" if names else f"there are no {kind}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
