"""The matrix of `nvidia-smi topo -m`: a host's GPUs and NICs, and which of them are near each other."""

from __future__ import annotations

import itertools
import re
from typing import Final

from jaxcomm.errors import ProfileError
from jaxcomm.profile.importers.gpu_host import joined, profile_of_host
from jaxcomm.profile.schema import Profile, Provenance

NAME: Final = "nvidia-smi topo -m"
LOOKED_FOR: Final = "a matrix of GPU0, GPU1, … with X, NV#, PIX, PXB, PHB, NODE and SYS"

_UNDERLINE = re.compile(r"\x1b?\[[0-9;]*m")
# First words of the columns 'CPU Affinity', 'NUMA Affinity' and 'GPU NUMA ID'.
_AFTER_LINKS: Final = ("CPU", "NUMA", "GPU")
_GPU = re.compile(r"GPU\d{1,6}")
_LINK = re.compile(r"X|NV\d{1,4}|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
_NEAR: Final = ("PIX", "PXB")  # links that cross no PCIe host bridge


def sniff(data: bytes) -> bool:
    """Whether the bytes contain a GPU's row whose first cell names a link."""
    return re.search(rb"(?m)^GPU\d+[ \t]+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)[ \t\r]*(?:\t|  |$)", data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the host; its rates are assumed, because the matrix has none.

    A NIC counts only if a GPU reaches it without crossing a PCIe host bridge. If there is no such NIC, all NICs count.
    GPUs form a group if NVLinks join them. Without NVLinks all GPUs are one group.

    Args:
      data: the command's output.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile of one rank per GPU.

    Raises:
      ProfileError: no header, a GPU without a row, an invalid cell, several matrices, or fewer than two GPUs.
    """
    columns: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        name, *cells = _UNDERLINE.sub("", line).split() or [""]
        is_header = name == "GPU0" and not (cells and _LINK.fullmatch(cells[0]))
        if columns and (is_header or name in rows):
            raise ProfileError(
                f"{where}:{number}: a second matrix begins with {name}; one host's can be read.\n"
                "  Cure: keep one; with --hosts N it stands for N hosts that are alike."
            )
        if is_header:
            columns = [name, *itertools.takewhile(lambda word: word not in _AFTER_LINKS, cells)]
        elif columns and _GPU.fullmatch(name):
            links = cells[: len(columns)]
            wrong = next((link for link in links if not _LINK.fullmatch(link)), None)
            if wrong is not None or len(links) < len(columns):
                problem = (
                    f"{wrong[:40]!r}, which is not a link"
                    if wrong is not None
                    else f"{len(links)} of {len(columns)} links"
                )
                raise ProfileError(f"{where}:{number}: {name} has {problem}.\n  Cure: run nvidia-smi topo -m again.")
            rows[name] = dict(zip(columns, links, strict=True))
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    if not columns or len({*columns}) < len(columns) or {*rows} != {*gpus}:
        raise ProfileError(
            f"{where}: names {len(gpus)} GPUs in its header and has rows of {len(rows)}.\n"
            "  Cure: give the whole output of nvidia-smi topo -m of one host."
        )
    nics = [name for name in columns if name not in rows]
    near = [nic for nic in nics if any(row[nic] in _NEAR for row in rows.values())]
    numbered = [*enumerate(gpus)]
    nvlinks = [(1.0, i, j) for i, one in numbered for j, other in numbered if rows[one][other].startswith("NV")]
    groups, _ = joined(len(gpus), nvlinks)
    provenance = Provenance(source=where, tool=NAME, created=created)
    return profile_of_host(groups, len(near or nics), None, None, (), provenance)
