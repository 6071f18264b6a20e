"""NCCL's view of a host, as it writes it to NCCL_TOPO_DUMP_FILE: GPUs, NVLinks, PCIe links, NICs and their rates.

The rates of links are NCCL's own, from src/graph/topo.h and topo.cc.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from statistics import median
from typing import Final

from jaxcomm.errors import ProfileError
from jaxcomm.profile.importers.gpu_host import profile_of_host
from jaxcomm.profile.schema import Profile, Provenance

NAME: Final = "a topology of NCCL"
LOOKED_FOR: Final = "XML with <system> and <gpu> or <net>, as in NCCL_TOPO_DUMP_FILE"

_NVLINK: Final = ((100, 40.1e9), (90, 20.6e9), (87, 20e9), (86, 12e9), (70, 20e9), (60, 18e9))  # by compute capability
_SWITCH: Final = "0x0680"  # PCI class of bridges, which NVSwitches are
_PCIE_SHARE: Final = 0.75  # of the transfers per second of a lane that carry bytes
_NET_MBPS: Final = 10000  # of a NIC that does not say
_MOST: Final = 10_000_000  # Mbit/s, or NVLinks, or lanes: more is a mistake


def sniff(data: bytes) -> bool:
    """Whether the root is <system> and holds GPUs or NICs."""
    return re.search(rb"<system[\s>]", data[:4096]) is not None and re.search(rb"<(?:gpu|net)\s", data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the host, with nominal rates.

    Args:
      data: the XML.
      where: its name.
      created: when it was written.

    Returns:
      The profile of one rank per GPU.

    Raises:
      ProfileError: no XML, a number that cannot be, or less than two GPUs.
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
    rates = [rate for gpu, pci in _gpus(root) if (rate := _gpu_rate(gpu, pci, where))]
    nets = [_number(net, "speed", where) * 1e6 / 8 or _NET_MBPS * 1e6 / 8 for net in root.iter("net")]
    provenance = Provenance(source=where, tool="NCCL", created=created)
    gpus = sum(1 for _ in _gpus(root))
    return profile_of_host(gpus, len(nets), median(rates) if rates else None, nets, provenance)


def _gpus(root: ElementTree.Element) -> Iterator[tuple[ElementTree.Element, ElementTree.Element]]:
    """Every GPU with the element that it is in."""
    return ((gpu, parent) for parent in root.iter() for gpu in parent.findall("gpu"))


def _gpu_rate(gpu: ElementTree.Element, pci: ElementTree.Element, where: str) -> float:
    """Bytes per second to another GPU: all NVLinks to switches, or those to one GPU, or PCIe; 0 if unknown."""
    links = {link.get("target", ""): link for link in gpu.findall("nvlink")}
    counts = [_number(link, "count", where) for link in links.values()]
    switched = any(link.get("tclass", "").startswith(_SWITCH) for link in links.values())
    capability = _number(gpu, "sm", where)
    each = next((rate for least, rate in _NVLINK if capability >= least), 0.0)
    if each and any(counts):
        return each * (sum(counts) if switched else median(counts))
    giga = re.match(r"\d{1,3}(?:\.\d{1,3})?", pci.get("link_speed", ""))
    return float(giga[0]) * 1e9 / 8 * _PCIE_SHARE * _number(pci, "link_width", where) if giga else 0.0


def _number(element: ElementTree.Element, name: str, where: str) -> int:
    """An attribute's value; 0 where there is none, or as NCCL writes what it does not know."""
    text = element.get(name, "") or "0"
    if not re.fullmatch(r"-?\d{1,9}", text) or int(text) > _MOST:
        raise ProfileError(
            f"{where}: <{element.tag[:40]}> has {name}={text[:40]!r}; it must be a number up to {_MOST}.\n"
            "  Cure: let NCCL write the file again."
        )
    return max(int(text), 0)
