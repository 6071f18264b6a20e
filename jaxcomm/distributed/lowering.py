"""What a collective over ranks of several processes becomes: a call of the core that all of them know by one name."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives.request import Across, Request
from jaxcomm.distributed import members

_lowerings = itertools.count()


class _Module:
    """A module that is being lowered."""

    def __init__(self) -> None:
        self.lowering = next(_lowerings)
        self.sites = itertools.count()


def across(
    context: mlir.LoweringRuleContext, request: Request, devices: Sequence[Sequence[Any]], where: str
) -> Request:
    """The request of a call whose ranks live in several processes, which this connects.

    Args:
      context: of the call.
      request: for one process.
      devices: of each group, in the order of its ranks.
      where: the line of the user's code, for messages.

    Raises:
      JaxcommError: the processes cannot be connected.
    """
    members.connected()
    module = jax_compat.module_data(context, _Module)
    digest = hashlib.sha256(f"{jax_compat.module_types(context)} {where}".encode()).digest()
    return dataclasses.replace(
        request,
        across=Across(
            processes=[[device.process_index for device in group] for group in devices],
            module=int.from_bytes(digest[:8], "little", signed=True),
            lowering=module.lowering,
            site=next(module.sites),
            where=where,
        ),
    )
