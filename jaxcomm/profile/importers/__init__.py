"""Reads other tools' measurements as profiles. Each format has one module, and is recognised by its content.

A module has its format's name (`NAME`), a description of what identifies the format (`LOOKED_FOR`), a test of whether
bytes have the format (`sniff`), and a reader (`read`). A new format is a new module and a row of `_IMPORTERS`. All
modules get lines from which the common prefix was stripped (see `common_prefix`). Shared or large parts are in
`gpu_host`, `hlo`, `nccl_choices` and `nccl_devices`.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Protocol

from jaxcomm.errors import ProfileError
from jaxcomm.profile import files, run_statistics
from jaxcomm.profile.importers import (
    common_prefix,
    nccl_tests,
    nccl_topology,
    nvidia_smi,
    pair_rates,
    training_log,
    xplane,
)
from jaxcomm.profile.schema import Profile

__all__ = ["read_any"]


class _Importer(Protocol):
    NAME: str
    LOOKED_FOR: str

    def sniff(self, data: bytes) -> bool: ...

    def read(self, data: bytes, where: str, created: str) -> Profile: ...


_IMPORTERS: tuple[_Importer, ...] = (
    run_statistics,
    nccl_tests,
    training_log,
    xplane,
    nccl_topology,
    nvidia_smi,
    pair_rates,
)


def read_any(path: str | os.PathLike[str]) -> Profile:
    """A profile from any file that can be read as one: a profile.json, or another tool's measurements.

    Known measurements are files of `jaxcomm.stats().save(path)`, the output of nccl-tests (table or JSON), training
    logs with a line per rank and step, and traces of `jax.profiler` (the .xplane.pb, or the folder given to
    `jax.profiler.trace`, if one process wrote it). Known descriptions of a network are a topology that NCCL dumped, the
    output of `nvidia-smi topo -m`, and matrices of rates between pairs of ranks or hosts; `with_network` adds a network
    to a measured profile. A prefix that a launcher or log collector put before all lines is stripped.

    Args:
      path: the file or folder.

    Returns:
      The profile. Its provenance names the file and tool; `link.source` says how α and β were found or assumed.

    Raises:
      ProfileError: the file cannot be read, no format fits, or a value is invalid (with the line or place).
    """
    file = _trace_in(Path(path)) if os.path.isdir(path) else Path(path)
    data = common_prefix.stripped(files.read_bytes(file))
    if files.is_profile(data):
        return files.decode(data, str(file))
    for importer in _IMPORTERS:
        if importer.sniff(data):
            written = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC)
            name = os.fsencode(file.name).decode("utf-8", errors="replace")
            return importer.read(data, name, written.isoformat(timespec="seconds"))
    known = [f"{importer.NAME} ({importer.LOOKED_FOR})" for importer in _IMPORTERS]
    raise ProfileError(
        f"{file}: no known format. Looked for: profile.json ({files.LOOKED_FOR}), {', '.join(known)}.\n"
        "  Cure: give one of these, or measure here with `jaxcomm profile`."
    )


def _trace_in(folder: Path) -> Path:
    traces = sorted(folder.rglob("*.xplane.pb"))
    newest = [trace for trace in traces if trace.parent == traces[-1].parent]
    if len(newest) == 1:
        return newest[0]
    raise ProfileError(
        f"{folder}: holds {len(newest)} .xplane.pb files of one trace; exactly one can be read, because the clocks of "
        "several hosts differ.\n  Cure: name the file to read."
    )
