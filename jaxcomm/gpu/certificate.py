"""The certificate of this machine's GPUs: the state of each section of `jaxcomm check`, which writes the file.

Sums over GPUs use an executor only if all sections that the executor needs have passed. A certificate is valid only for
the devices and versions with which it was made.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxcomm.distributed import store
from jaxcomm.environment import CERTIFICATE
from jaxcomm.gpu import core, nccl

FORMAT, VERSION = "jaxcomm-check", 1
PASSED = "passed"

# The sections that must pass for each use: "process" (sums over one process's GPUs) or "nccl" (between processes).
NEEDS: dict[str, tuple[str, ...]] = {"process": ("exact", "types", "deadline", "devices"), "nccl": ("nccl",)}


def path() -> Path:
    """Path of the certificate: $JAXCOMM_CERTIFICATE, or jaxcomm/check.json in the user's state directory."""
    if named := os.environ.get(CERTIFICATE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state, "jaxcomm/check.json")


@functools.cache
def here() -> dict[str, Any]:
    """Describes this machine for a certificate: the kinds of this process's GPUs, and the versions of the software."""
    import jax

    driver = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", driver.read_text()) if driver.exists() else None
    return {
        "devices": sorted({gpu.device_kind for gpu in jax.local_devices(backend="cuda")} if core.jax_has_it() else []),
        "driver": found[1] if found else "unknown",
        "cuda": core.runtime_version(),
        "nccl": None if nccl.why_off() else ".".join(map(str, nccl.version())),
        **{name: _version(name) for name in ("jax", "jaxlib", "jaxcomm")},
        "core": hashlib.sha256(core.library().read_bytes()).hexdigest()[:16],
    }


def content(made_for: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The content of a certificate: the machine, and the state, table and time of each section."""
    document = {"format": FORMAT, "version": VERSION, "made_for": made_for, "sections": sections}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def sections_for(made_for: Mapping[str, Any]) -> dict[str, Any]:
    """This machine's sections in the certificate; empty if the certificate is missing or for another machine."""
    try:
        document = _read()
    except ValueError:
        return {}
    return document["sections"] if document["made_for"] == made_for else {}


def why_not(use: str) -> str | None:
    """The reason why the certificate does not allow this use ("process" or "nccl") here; None if it allows the use."""
    try:
        document = _read()
    except ValueError as error:
        return str(error)
    for name, value in here().items():
        if (other := document["made_for"].get(name)) != value:
            return f"{path()} was made with {name} {_words(other)}; here it is {_words(value)}"
    missing = missing_of(use, document["sections"])
    return f"by {path()}, {missing}" if missing else None


def missing_of(use: str, sections: Mapping[str, Any]) -> str | None:
    """The name and state of the first section that this use needs and that has not passed; None if all have passed."""
    for name in NEEDS[use]:
        state = sections.get(name, {}).get("state", "has not run")
        if state != PASSED:
            return f"section {name!r}: {state}"
    return None


def why_not_in(use: str, members: Iterable[int]) -> str | None:
    """The first reason that `why_not` gives in one of these processes, or None. All processes get the same result.

    Raises:
      JaxcommError: a process does not publish its reason.
    """
    ordered = sorted(members)
    if len(ordered) == 1:
        return why_not(use)
    answers = {process: _answer(use, process) for process in ordered}
    return next((f"process {process}: {answer}" for process, answer in answers.items() if answer), None)


@functools.cache
def _answer(use: str, process: int) -> str:
    import jax

    store.publish(f"certificate/{use}/{jax.process_index()}", why_not(use) or "")
    return store.lookup(
        f"certificate/{use}/{process}", f"process {process} has not published its `jaxcomm check` results"
    )


def _read() -> dict[str, Any]:
    """Reads the certificate's file. Raises ValueError with the reason if the file is not a valid certificate."""
    file = path()
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"`jaxcomm check` has not run here yet ({file} does not exist)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{file} is not a certificate of `jaxcomm check`")
    if document.get("version") != VERSION:
        raise ValueError(f"{file} is of version {document.get('version')}; this jaxcomm reads version {VERSION}")
    made_for, sections = document.get("made_for"), document.get("sections")
    if not isinstance(made_for, dict) or not isinstance(sections, dict):
        raise ValueError(f"{file} is damaged")
    if not all(isinstance(section, dict) for section in sections.values()):
        raise ValueError(f"{file} is damaged")
    return document


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the package runs from its sources
        return "not installed"


def _words(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
