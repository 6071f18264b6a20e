"""NCCL's view of a host, from NCCL_TOPO_DUMP_FILE: GPUs, NVLinks, PCIe links, NICs and their rates.

RCCL writes the same format for AMD's GPUs, with XGMI links. The links' rates come from NCCL's src/graph/topo.h and
topo.cc.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Final, NamedTuple

from jaxcomm.errors import ProfileError
from jaxcomm.profile.importers.gpu_host import joined, profile_of_host
from jaxcomm.profile.schema import Profile, Provenance

NAME: Final = "a topology of NCCL"
LOOKED_FOR: Final = "XML with <system> and <gpu> or <net>, as in NCCL_TOPO_DUMP_FILE"

# Bytes per second of an NVLink, of an XGMI link, and between CPUs.
_NVLINK: Final = ((100, 40.1e9), (90, 20.6e9), (87, 20e9), (86, 12e9), (70, 20e9), (60, 18e9))  # by compute capability
_XGMI: Final = (("gfx94", 48e9), ("gfx95", 48e9), ("gfx90a", 36e9), ("910", 36e9), ("", 24e9))  # by architecture
_INTEL: Final = ((0xCF, 40e9), (0xB0, 22e9), (0xAD, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))  # by model of family 6
_SOCKETS: Final = {"AuthenticAMD": 16e9, "GenuineIntel": 6e9, "ppc64": 32e9, "ppc64le": 32e9, "arm64": 6e9}
_SWITCH: Final = "0x0680"  # PCI class of bridges, to which NVSwitches belong
_PCIE_SHARE: Final = 0.75  # share of a lane's transfers per second that carry data
_PCIE: Final = 12e9  # bytes per second of a GPU whose link is not stated: third-generation PCIe with 16 lanes
_NET_MBPS: Final = 10000  # Mbit/s of a NIC whose rate is not stated
_MOST: Final = 10_000_000  # larger numbers of Mbit/s, NVLinks or lanes are taken for mistakes


class _Gpu(NamedTuple):
    """A GPU, its PCIe address and rate, the number of its CPU in the file, and that CPU's rate to other CPUs."""

    element: ElementTree.Element
    bus: str
    pcie: float
    cpu: int
    between_cpus: float


def sniff(data: bytes) -> bool:
    """Whether the root is <system> and holds GPUs or NICs."""
    return re.search(rb"<system[\s>]", data[:4096]) is not None and re.search(rb"<(?:gpu|net)\s", data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the host, with nominal rates.

    Args:
      data: the XML.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile of one rank per GPU, in the order of the GPUs' ranks. GPUs form a group if NVLink or XGMI joins them,
      directly, over a switch or over other GPUs. All links within a group count as having the rate of the slowest link
      that is needed to join the group.

    Raises:
      ProfileError: not XML, a number out of range, or fewer than two GPUs.
    """
    if b"<!" in re.sub(rb"<!--.*?-->", b"", data, flags=re.DOTALL):
        raise ProfileError(
            f"{where}: declares entities, which NCCL never does.\n  Cure: let NCCL write the file again."
        )
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ProfileError(
            f"{where}: cannot be read as XML: {str(error)[:200]}.\n  Cure: let NCCL write the file again."
        ) from None
    gpus = _gpus(root, where)
    nets = [_number(net, "speed", where) * 1e6 / 8 or _NET_MBPS * 1e6 / 8 for net in root.iter("net")]
    groups, within = joined(len(gpus), _links(gpus, where))
    hop = _slowest_hop(gpus)
    provenance = Provenance(source=where, tool="NCCL", created=created)
    return profile_of_host(groups, len(nets), within or hop, hop, nets, provenance)


def _gpus(root: ElementTree.Element, where: str) -> list[_Gpu]:
    found = []
    cpus = 0
    left = [(root, "", 0.0, 0, math.inf)]
    while left:
        element, bus, pcie, cpu, between = left.pop()
        if element.tag == "cpu":
            cpus += 1
            cpu, between = cpus, _between_cpus(element, where)
        elif element.tag == "pci":
            bus, pcie = element.get("busid", "").lower(), _pcie_rate(element, where)
        elif element.tag == "gpu":
            found.append(_Gpu(element, bus, pcie or _PCIE, cpu, between))
        left += [(child, bus, pcie, cpu, between) for child in reversed(element)]
    return sorted(found, key=lambda gpu: _number(gpu.element, "rank", where))


def _links(gpus: Sequence[_Gpu], where: str) -> list[tuple[float, int, int]]:
    """For each link, its bytes per second and the indices of the two GPUs that it joins; -1 stands for the switches."""
    index = {gpu.bus: i for i, gpu in enumerate(gpus)}
    found = []
    for i, (element, *_) in enumerate(gpus):
        capability, name = _number(element, "sm", where), element.get("gcn", "")
        nvlink = next((rate for least, rate in _NVLINK if capability >= least), 0.0)
        xgmi = next(rate for start, rate in _XGMI if name.startswith(start))
        switched = 0.0
        for tag, each in (("nvlink", nvlink), ("xgmi", xgmi)):
            for link in element.findall(tag):
                rate = each * _number(link, "count", where)
                other = index.get(link.get("target", "").lower())
                if other is not None and other != i and rate:
                    found.append((rate, i, other))
                elif link.get("tclass", "").startswith(_SWITCH):
                    switched += rate
        if switched:
            found.append((switched, i, -1))
    return found


def _slowest_hop(gpus: Sequence[_Gpu]) -> float:
    """Bytes per second of the slowest hop: over PCIe or, if the GPUs are at several CPUs, from one CPU to another."""
    several = len({gpu.cpu for gpu in gpus}) > 1
    return min((min(gpu.pcie, gpu.between_cpus if several else math.inf) for gpu in gpus), default=_PCIE)


def _pcie_rate(pci: ElementTree.Element, where: str) -> float:
    """Bytes per second of a PCIe link; 0 if the file does not state the link's speed."""
    giga = re.match(r"\d{1,3}(?:\.\d{1,3})?", pci.get("link_speed", ""))
    return float(giga[0]) * 1e9 / 8 * _PCIE_SHARE * (_number(pci, "link_width", where) or 16) if giga else 0.0


def _between_cpus(cpu: ElementTree.Element, where: str) -> float:
    """Bytes per second from one CPU to another; infinite if unknown."""
    vendor, model = cpu.get("vendor", ""), _number(cpu, "modelid", where)
    if vendor == "GenuineIntel" and _number(cpu, "familyid", where) == 6:
        return next(rate for least, rate in _INTEL if model >= least)
    return _SOCKETS.get(vendor, _SOCKETS.get(cpu.get("arch", ""), math.inf))


def _number(element: ElementTree.Element, name: str, where: str) -> int:
    """An attribute's value; 0 if it is missing or negative. NCCL writes unknown values as negative numbers."""
    text = element.get(name, "") or "0"
    if not re.fullmatch(r"-?\d{1,9}", text) or int(text) > _MOST:
        raise ProfileError(
            f"{where}: <{element.tag[:40]}> has {name}={text[:40]!r}; it must be a number up to {_MOST}.\n"
            "  Cure: let NCCL write the file again."
        )
    return max(int(text), 0)
