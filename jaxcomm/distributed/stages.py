"""The stages in which the processes of a job connect: what each publishes at a stage, the others look up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError

STAGES: Final = ("generation", "way", "record", "connected", "udp")  # in this order
_FAILED: Final = "failed: "
_CURE: Final = "run the same steps in all processes; JAXCOMM_CONNECT_TIMEOUT_S=600 gives them more time."


def publish(stage: str, process: int, text: str) -> None:
    """Publishes a process's text of a stage.

    Raises:
      JaxcommError: as `store.publish`.
    """
    store.publish(f"{stage}/{process}", text)


def publish_failure(process: int, error: Exception) -> None:
    """Publishes that a process could not be connected, at all stages that it has not come to."""
    for stage in STAGES:
        publish(stage, process, f"{_FAILED}{error}")


def lookup_all(stage: str, processes: Iterable[int], deadline: float, verb: str) -> dict[int, str]:
    """The texts that processes have published at a stage, or publish before a deadline.

    Args:
      stage: one of `STAGES`.
      processes: their numbers.
      deadline: on the clock of `time.monotonic`.
      verb: says in the error which step is missing: "come".

    Raises:
      JaxcommError: a process has not come so far, or has published why it could not.
    """
    found, missing = store.lookup_all({process: f"{stage}/{process}" for process in processes}, deadline)
    for process, text in found.items():
        if text.startswith(_FAILED):
            reason = text.removeprefix(_FAILED).splitlines()[0]
            raise JaxcommError(f"process {process} could not be connected: {reason}\n  Cure: see its error.")
    if missing:
        words = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise JaxcommError(f"{words} ha{'ve' if len(missing) > 1 else 's'} not {verb} in time.\n  Cure: {_CURE}")
    return found
