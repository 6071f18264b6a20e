"""Numbers the calls that span processes, so that a call has the same number in all its processes."""

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

    The digest covers the module's types, and the line and the devices of its first call. After an error, the digest
    distinguishes a relaunch of the same step from a launch of another step. A call matches in all its processes even
    if the processes' modules, and therefore the digests, differ.
    """

    def __init__(self, contents: str) -> None:
        digest = hashlib.sha256(contents.encode()).digest()
        self.digest = int.from_bytes(digest[:8], "little", signed=True)
        self.lowering = next(_lowerings)
        self.numbers: dict[Groups, itertools.count[int]] = collections.defaultdict(itertools.count)


def with_site(request: Request, context: mlir.LoweringRuleContext, line: str) -> Request:
    """Connects the processes, and returns the request with its site and, where hosts matter, the processes' hosts.

    Args:
      request: a call that spans processes.
      context: the call's lowering context.
      line: the line of the user's code that made the call.

    Raises:
      JaxcommError: the processes cannot be connected.
    """
    from jaxcomm.distributed.connect import members

    connected = members.connected()
    contents = f"{jax_compat.module_types(context)} {line} {request.groups}"
    module = jax_compat.module_data(context, _Module, lambda: _Module(contents))
    site = Site(module.digest, module.lowering, next(module.numbers[request.groups]), line)
    # Over UDP the request has no hosts, so that calls run the direct schedule: a ring was slower for 1 and 4 MiB (but
    # faster for 16 MiB).
    return dataclasses.replace(request, site=site, hosts=() if connected.is_over_udp else connected.hosts)
