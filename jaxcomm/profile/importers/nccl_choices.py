"""NCCL's algorithm and protocol for each size, and the α and β of each protocol.

Each protocol has its own α and β, like a separate link. NCCL logs its choices with NCCL_DEBUG=INFO and
NCCL_DEBUG_SUBSYS=TUNING, by name or, before 2.24, by number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Link, OpName

_LINE = re.compile(r"\b(\d{1,18}) Bytes -> Algo (\w{1,16}) proto (\w{1,16})")
_ALGORITHMS: Final = ("TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")


class NcclChoice(NamedTuple):
    """The algorithm and the protocol that NCCL chose for a size."""

    algorithm: str
    protocol: str


def choices(text: str) -> dict[int, NcclChoice]:
    """NCCL's choice for each size in a log; the last choice if the log has several for one size."""
    return {
        int(size): NcclChoice(_named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS))
        for size, algorithm, protocol in _LINE.findall(text)
    }


def fit_of_ring(
    samples: Sequence[Sample], taken: Mapping[int, NcclChoice], op: OpName, ranks: int, source: str
) -> Link:
    """The link fitted to the samples that NCCL ran as a ring with one protocol.

    Only protocols with ring samples of at least two sizes are considered. The link is fitted to the ring samples of the
    one that ran the largest size, and the link's `source` also has the α and β of the others. If no protocol has such
    samples, the link is fitted to all samples. Ring samples are preferred because our schedules consist of transfers
    like those of a ring. Samples of a tree, or of a protocol that trades half of the bandwidth for less latency, would
    make α too small and β too large.
    """
    of_protocol: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.bytes):
        if sample.bytes in taken and taken[sample.bytes].algorithm == "RING":
            of_protocol[taken[sample.bytes].protocol].append(sample)
    fitted = {
        protocol: fit(members, op, ranks, f"{source}, Ring with {protocol}")
        for protocol, members in of_protocol.items()
        if len({sample.bytes for sample in members}) > 1
    }
    if not fitted:
        return fit(samples, op, ranks, source)
    largest = max(fitted, key=lambda protocol: of_protocol[protocol][-1].bytes)
    others = "".join(
        f"; with {protocol}, α {link.alpha_s * 1e6:.3g} µs and β {1e-9 / max(link.beta_s_per_byte, 1e-18):.3g} GB/s"
        for protocol, link in fitted.items()
        if protocol != largest
    )
    link = fitted[largest]
    return link.model_copy(update={"samples": list(samples), "source": f"{link.source}{others}"[:4096]})


def _named(word: str, names: Sequence[str]) -> str:
    number = int(word) if word.isdecimal() and len(word) < 3 else len(names)
    return names[number] if number < len(names) else word.upper()
