"""The number by which all processes know a call whose ranks live in several of them."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools

from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives.request import Groups, Request, Site

_lowerings = itertools.count()


class _Module:
    """A module that is being lowered.

    Its digest is of its types, and the line and devices of its first call. Processes whose modules differ run their
    calls together nevertheless, if these are alike: the digest only distinguishes a relaunch after an error from
    another step.
    """

    def __init__(self, contents: str) -> None:
        digest = hashlib.sha256(contents.encode()).digest()
        self.digest = int.from_bytes(digest[:8], "little", signed=True)
        self.lowering = next(_lowerings)
        self.numbers: dict[Groups, itertools.count[int]] = collections.defaultdict(itertools.count)


def with_site(request: Request, context: mlir.LoweringRuleContext, line: str) -> Request:
    """The request with its site and, where they matter, the processes' hosts, once the processes are connected.

    Args:
      request: spans processes.
      context: of the call.
      line: of the user's code that made it.

    Raises:
      JaxcommError: the processes cannot be connected.
    """
    from jaxcomm.distributed import members

    connected = members.connected()
    contents = f"{jax_compat.module_types(context)} {line} {request.groups}"
    module = jax_compat.module_data(context, _Module, lambda: _Module(contents))
    site = Site(module.digest, module.lowering, next(module.numbers[request.groups]), line)
    # Over UDP a ring of 1 and of 4 MiB was behind the direct schedule, and one of 16 MiB ahead.
    return dataclasses.replace(request, site=site, hosts=() if connected.is_over_udp else connected.hosts)
