"""All-reduces over GPUs of several hosts: the schedule's messages, between processes that NCCL connects.

All processes lower the same steps in the same order, and meet when they do: as `jaxcomm.processes` says and, where the
communicators are ours, through NCCL.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import mlir

from jaxcomm import communicator, processes
from jaxcomm.collectives.request import extent
from jaxcomm.ffi import lent, nccl

Groups = tuple[tuple[tuple[int, int], ...], ...]  # of each rank: its process, and CUDA's number of its device there


class AllReduce(NamedTuple):
    """A sum, maximum or minimum over groups of devices.

    Attributes:
      name: the public function, and of which bucket, for messages.
      reduction: "sum", "max" or "min".
      axes: the axes' names, for messages.
      plan: hash of a plan, or "".
      groups: the devices of each group, in the order of its ranks.
      positions: where these are among the devices that the step is compiled for.
    """

    name: str
    reduction: str
    axes: str
    plan: str
    groups: Groups
    positions: Sequence[Sequence[int]]


def several(those: Iterable[int]) -> bool:
    """Whether these processes are on several hosts.

    Raises:
      JaxcommError: one does not tell on which it is.
    """
    apart = sorted(those)
    return len(apart) > 1 and len({processes.host(process) for process in apart}) > 1


def lower(context: mlir.LoweringRuleContext, operands: Sequence[Any], call: AllReduce) -> Sequence[Any]:
    """The custom call for it, whose communicators are there when this returns.

    Raises:
      PlanError: the plan's schedule cannot be sent.
      JaxcommError: not all processes come, or NCCL cannot connect them before the deadline.
    """
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    where = f"{call.name} over '{call.axes}'"
    sizes = [len(group) for group in call.groups]
    schedules = tuple(
        communicator.choose_schedule(size, nbytes, dtype, call.plan, where)[0] for size in sorted({*sizes} - {1})
    )
    lends = all(_lends_to(process) for process in sorted({process for group in call.groups for process, _ in group}))
    attributes: dict[str, Any] = {
        "what": call.name,
        "group": _join(call.groups, call.axes, lends),
        "messages": nccl.register_messages(schedules),
        "reduction": call.reduction,
    }
    if lends:
        lent.register()
        attributes |= {"groups": np.concatenate(call.positions).astype(np.int64), "sizes": np.array(sizes, np.int64)}
    else:
        nccl.register()
        attributes |= {"iteration": np.int64(-1), "shares": np.ones(1)}
    aliases = {i: i for i in range(len(operands))}
    lowered = jax.ffi.ffi_lowering(lent.TARGET if lends else nccl.TARGET, operand_output_aliases=aliases)
    results: Sequence[Any] = lowered(context, *operands, **attributes)
    return results


_attempts: Counter[str] = Counter()


@functools.cache
def _join(groups: Groups, axes: str, lends: bool) -> str:
    """Makes this process's devices ranks of their groups, and returns the name that a call finds these by."""
    digest = hashlib.sha256(json.dumps([groups, axes, lends]).encode()).hexdigest()[:16]
    name, here = f"{axes} {digest[:8]}", jax.process_index()
    _attempts[digest] += 1
    meeting = f"{digest}/{_attempts[digest]}"  # all come to the same one: what fails, fails for all
    mine = [
        (index, rank, device)
        for index, group in enumerate(groups)
        for rank, (process, device) in enumerate(group)
        if process == here
    ]
    indices = sorted({index for index, _, _ in mine})
    with ExitStack() as stack:
        boards = {index: stack.enter_context(_board(meeting, index).shared()) for index in indices if lends}
        for index, rank, device in mine if lends else ():
            lent.borrow(name, ranks=len(groups[index]), rank=rank, device=device, board=boards[index])
        # They may be compiling something else before they come, which is no rank's lateness.
        processes.tell(f"{meeting}/here/{here}", "")
        for process in sorted({process for index in indices for process, _ in groups[index]}):
            processes.hear(f"{meeting}/here/{process}", f"process {process} has not come to a call over '{axes}'")
    if not lends:
        _connect(name, groups, meeting, mine)
    return name


def _board(meeting: str, index: int) -> nccl.Board:
    """Of one group in this job; another job on this host may have the same groups."""
    return nccl.Board(hashlib.sha256(f"{processes.job()} {meeting} {index}".encode()).hexdigest()[:32])


def _connect(name: str, groups: Groups, meeting: str, mine: Sequence[tuple[int, int, int]]) -> None:
    """Joins through NCCL. The process of a group's first rank makes its id."""
    ids = {}
    for index in sorted({index for index, _, _ in mine}):
        if (first := groups[index][0][0]) == jax.process_index():
            processes.tell(f"{meeting}/id/{index}", nccl.unique_id().hex())
        told = processes.hear(f"{meeting}/id/{index}", f"process {first} has not made an id for '{name}'")
        ids[index] = {"": bytes.fromhex(told)}

    def join(part: tuple[int, int, int]) -> None:
        index, rank, device = part
        nccl.join(name, ranks=len(groups[index]), rank=rank, ids=ids[index], device=device, deadline_s=None)

    with ThreadPoolExecutor(max(1, len(mine))) as pool:  # each waits for ranks that may be of this process
        list(pool.map(join, mine))


@functools.cache
def _lends_to(process: int) -> bool:
    """Whether XLA lends its communicators to a process; all of a call must do the same."""
    processes.tell(f"lends/{jax.process_index()}", json.dumps(nccl.LENT and lent.why_off() is None))
    lends: bool = json.loads(processes.hear(f"lends/{process}", f"process {process} has not told what XLA lends it"))
    return lends
