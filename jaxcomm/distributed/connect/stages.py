"""The stages in which a job's processes connect.

At each stage a process publishes a text and looks up the texts of the other processes. Each text begins with the
protocol version, which must be the same in all processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jaxcomm.distributed import store
from jaxcomm.distributed.connect.handshake import VERSION
from jaxcomm.errors import JaxcommError

STAGES: Final = ("generation", "route", "record", "connected", "paths")  # in this order
_FAILED: Final = "failed: "
_CURE: Final = "run the same steps in all processes; JAXCOMM_CONNECT_TIMEOUT_S=600 gives them more time."


def publish(stage: str, process: int, text: str) -> None:
    """Publishes a process's text of a stage. Raises the errors of `store.publish`."""
    store.publish(f"{stage}/{process}", f"{VERSION} {text}")


def publish_failure(process: int, error: Exception) -> None:
    """Publishes the error of a process that could not be connected, at all stages that the process has not reached."""
    for stage in STAGES:
        publish(stage, process, f"{_FAILED}{error}")


def lookup_all(stage: str, processes: Iterable[int], deadline: float, verb: str) -> dict[int, str]:
    """Returns the texts that processes have published at a stage, or publish before a deadline.

    Args:
      stage: one of `STAGES`.
      processes: the numbers of the processes.
      deadline: on the clock of `time.monotonic`.
      verb: the past participle in the error "process 3 has not … in time", such as "arrived".

    Raises:
      JaxcommError: a process is missing, has another version, or has published why it could not be connected.
    """
    published, missing = store.lookup_all({process: f"{stage}/{process}" for process in processes}, deadline)
    found = {process: _of_this_version(process, text) for process, text in published.items()}
    for process, text in found.items():
        if text.startswith(_FAILED):
            reason = text.removeprefix(_FAILED).splitlines()[0]
            raise JaxcommError(f"process {process} could not be connected: {reason}\n  Cure: see its error.")
    if missing:
        words = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise JaxcommError(f"{words} ha{'ve' if len(missing) > 1 else 's'} not {verb} in time.\n  Cure: {_CURE}")
    return found


def _of_this_version(process: int, text: str) -> str:
    version, _, rest = text.partition(" ")
    if version != str(VERSION):
        theirs = f"version {version}" if version.isdecimal() and len(version) < 9 else "an unknown version"
        raise JaxcommError(
            f"process {process} speaks {theirs} of jaxcomm's protocol, and this process version {VERSION}.\n"
            "  Cure: install the same version of jaxcomm for all processes."
        )
    return rest
