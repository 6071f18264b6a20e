"""All-reduces over GPUs of several hosts: the schedule's messages, between processes that NCCL connects.

All processes lower the same steps in the same order; while they do, they exchange addresses through the key-value store
of `jaxcomm.distributed`, and connect through NCCL.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.interpreters import mlir

from jaxcomm.collectives import choice
from jaxcomm.collectives.request import Groups, Request, extent
from jaxcomm.distributed import records, store
from jaxcomm.gpu import nccl


def spans_hosts(members: Iterable[int]) -> bool:
    """Whether these processes are on more than one host.

    Raises:
      JaxcommError: one has not published on which it is.
    """
    ordered = sorted(members)
    return len(ordered) > 1 and len({records.host_name(process) for process in ordered}) > 1


def lower(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The custom call for an all-reduce, whose communicators are there when this returns.

    Raises:
      PlanError: the plan is for another number of ranks, or its schedule cannot be sent.
      JaxcommError: not all processes come, or NCCL cannot connect them before the deadline.
    """
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    schedules = tuple(
        choice.choose_schedule(size, nbytes, dtype, request.plan, request.call)[0]
        for size in sorted({*request.sizes} - {1})
    )
    nccl.register()
    lowered = jax.ffi.ffi_lowering(nccl.TARGET, operand_output_aliases={i: i for i in range(len(operands))})
    results: Sequence[Any] = lowered(
        context,
        *operands,
        name=request.name,
        group=_join(request.groups, request.axes),
        messages=nccl.register_messages(schedules),
        reduction=request.reduction,
    )
    return results


_bootstraps: Counter[str] = Counter()


@functools.cache
def _join(groups: Groups, axes: str) -> str:
    """Makes this process's devices ranks of their groups, and returns the name that a call finds these by."""
    digest = hashlib.sha256(json.dumps([groups, axes]).encode()).hexdigest()[:16]
    name, here = f"{axes} {digest[:8]}", jax.process_index()
    _bootstraps[digest] += 1
    prefix = f"{digest}/{_bootstraps[digest]}"  # the same in all processes: what fails, fails for all
    mine = [
        (index, rank, device)
        for index, group in enumerate(groups)
        for rank, (process, device) in enumerate(group)
        if process == here
    ]
    indices = sorted({index for index, _, _ in mine})
    # They may be compiling something else before they come, which is no rank's lateness.
    store.publish(f"{prefix}/here/{here}", "")
    for process in sorted({process for index in indices for process, _ in groups[index]}):
        store.lookup(f"{prefix}/here/{process}", f"process {process} has not come to a call over '{axes}'")
    ids = {}
    for index in indices:
        first, _ = groups[index][0]  # whose process makes the group's id
        if first == here:
            store.publish(f"{prefix}/id/{index}", nccl.unique_id().hex())
        ids[index] = bytes.fromhex(
            store.lookup(f"{prefix}/id/{index}", f"process {first} has not made an id for '{name}'")
        )

    def join(member: tuple[int, int, int]) -> None:
        index, rank, device = member
        nccl.join(name, ranks=len(groups[index]), rank=rank, id=ids[index], device=device)

    with ThreadPoolExecutor(max(1, len(mine))) as pool:  # each waits for ranks that may be of this process
        list(pool.map(join, mine))
    return name
