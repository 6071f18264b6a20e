"""The ranks that nccl-tests lists above its table, and the ranks' hosts.

#  Rank  8 Group  0 Pid     21 on   worker-1 device  0 [0000:0f:00] NVIDIA …
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from jaxcomm.errors import ProfileError
from jaxcomm.profile.cluster import Topology
from jaxcomm.profile.schema import MAX_RANKS

_RANK: Final = re.compile(
    r"(?m)(?:#|^)[ \t]{0,16}Rank[ \t]{1,16}(\d{1,6})[ \t]{1,16}(?:Group[ \t]{1,16}(\d{1,6})[ \t])?"
    r"(?:.{0,80}?\bon[ \t]{1,80}(\S{1,256})[ \t]{1,16}|.{0,300}?\b)device\b"
)
_LAYOUT: Final = re.compile(r"nThread\s{1,16}(\d{1,6})\s{1,16}nGpus\s{1,16}(\d{1,6})\b")


def listed(text: str, where: str) -> tuple[str, ...]:
    """The host of each listed rank, in the ranks' order: "" for a host that is not stated, () if no rank is listed.

    Only ranks of the first group count. A text with several runs may list each rank several times.

    Raises:
      ProfileError: processes ran alone instead of together.
    """
    hosts: dict[int, str] = {}
    found = [(match.start(), int(match[1]), match[2], match[3] or "") for match in _RANK.finditer(text)]
    found = [each for each in found if each[2] == found[0][2]]
    for start, rank, _, host in found:
        if hosts.setdefault(rank, host) != host:
            line = text.count("\n", 0, start) + 1
            raise ProfileError(
                f"{where}:{line}: rank {rank} is on {host[:80]!r} here and on "
                f"{hosts[rank][:80]!r} above: processes ran alone, as nccl-tests without MPI does.\n"
                "  Cure: build it with `make MPI=1`, or keep the output of one host."
            )
    if len(hosts) == 1 < len(found):
        raise ProfileError(
            f"{where}: {len(found)} processes ran alone, each as rank {found[0][1]} of one, as nccl-tests without MPI "
            f"does.\n  Cure: build it with `make MPI=1`, or run one process with -g {len(found)}."
        )
    return tuple(hosts[rank] for rank in sorted(hosts))


def listed_in_json(config: Any) -> tuple[str, ...]:
    """The host of each rank. A process lists only its first device; its other devices follow from the layout.

    Raises:
      KeyError, TypeError, ValueError, IndexError: the configuration is not as nccl-tests writes it.
    """
    first = config["devices"][0].get("group", 0)
    devices = [device for device in config["devices"] if device.get("group", 0) == first]
    each = int(config["nthreads"]) * int(config["ngpus"])
    if not 0 < each * len(devices) <= MAX_RANKS:
        raise ValueError(f"{len(devices)} processes have {each} ranks each; at most {MAX_RANKS} are supported")
    devices.sort(key=lambda device: int(device.get("rank", 0)))
    return tuple(str(device.get("hostname") or "")[:256] for device in devices for _ in range(each))


def laid_out(text: str) -> int | None:
    """The number of ranks of a process: its threads times the GPUs per thread. None if the text lacks these numbers."""
    layout = _LAYOUT.search(text)
    return int(layout[1]) * int(layout[2]) if layout else None


def topology(hosts: Sequence[str]) -> Topology | None:
    """The topology if there are several hosts and a host has several ranks; otherwise None, as all links are equal.

    All channels of a host together carry one ring's traffic, so the ranks of a host share one NIC in the model. A ring
    takes the time of its slowest hop, so a link within a host counts as no faster than a link between hosts.
    """
    number = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    if not 1 < len(number) < len(hosts):
        return None
    return Topology(hosts=tuple(number[host] for host in hosts), nic="host", slow=1.0)
