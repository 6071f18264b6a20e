"""The processes of the job that are gone, as this one sees them."""

from __future__ import annotations

from collections.abc import Collection

from jaxcomm import ffi
from jaxcomm.errors import JaxcommError


class ProcessGone(JaxcommError):
    """A process that is needed is gone.

    Attributes:
      why: in the words of its connection: "process 3 has left".
      has_left: it ended by itself; else it was killed, or its host does not answer.
    """

    def __init__(self, needed: str, why: str, has_left: bool) -> None:
        # As in cc/base/errors.h.
        cure = "all processes again; where they were started with JAX_ENABLE_RECOVERABILITY=1, the others may go on"
        super().__init__(f"{needed}: {why}.\n  Cure: start {cure} without it.")
        self.why, self.has_left = why, has_left


def require(processes: Collection[int], needed: str) -> None:
    """Raises ProcessGone if one of these processes is gone; `needed` says what for, in the error."""
    for record in ffi.gone():
        if record["process"] in processes:
            raise ProcessGone(needed, record["why"].splitlines()[0].rstrip("."), record["has_left"])
