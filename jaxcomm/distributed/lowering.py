"""What a collective whose ranks live in several processes is lowered with: connections, and a name that all know."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives.request import Request, Site
from jaxcomm.distributed import members

_lowerings = itertools.count()


class _Module:
    """A module that is being lowered."""

    def __init__(self) -> None:
        self.lowering = next(_lowerings)
        self.numbers = itertools.count()


def with_site(request: Request, context: mlir.LoweringRuleContext, line: str) -> Request:
    """The request with its site, once the processes are connected.

    Args:
      request: spans processes.
      context: of the call.
      line: of the user's code that made it.

    Raises:
      JaxcommError: the processes cannot be connected.
    """
    members.connected()
    module = jax_compat.module_data(context, _Module)
    contents = hashlib.sha256(f"{jax_compat.module_types(context)} {line}".encode()).digest()
    digest = int.from_bytes(contents[:8], "little", signed=True)
    return dataclasses.replace(request, site=Site(digest, module.lowering, next(module.numbers), line))
