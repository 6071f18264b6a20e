"""All-reduces over GPUs of several hosts: the schedule's messages, between processes that NCCL connects.

All processes lower the same steps in the same order, and meet when they do: in the key-value store of `jax.distributed`
and, where the communicators are ours, through NCCL.
"""

from __future__ import annotations

import functools
import hashlib
import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import mlir

from jaxcomm import communicator, ffi, jax_compat
from jaxcomm.collectives.request import extent
from jaxcomm.errors import JaxcommError
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


def several(groups: Groups) -> bool:
    """Whether a group has ranks on several hosts.

    Raises:
      JaxcommError: "DeadlineError: …" where a process does not say on which host it is.
    """
    processes = [{process for process, _ in group} for group in groups]
    return any(len({_about(process).host for process in each}) > 1 for each in processes if len(each) > 1)


def lower(context: mlir.LoweringRuleContext, operands: Sequence[Any], call: AllReduce) -> Sequence[Any]:
    """The custom call for it, whose communicators are there when this returns.

    Raises:
      PlanError: the plan is for another number of ranks, or its schedule cannot be sent.
      JaxcommError: not all processes come before the deadline, or NCCL cannot connect them.
    """
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    where = f"{call.name} over '{call.axes}'"
    sizes = [len(group) for group in call.groups]
    schedules = tuple(
        communicator.choose_schedule(size, nbytes, dtype, call.plan, where)[0] for size in sorted({*sizes} - {1})
    )
    lends = all(_about(process).lends for process in sorted({process for group in call.groups for process, _ in group}))
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


@functools.cache
def _join(groups: Groups, axes: str, lends: bool) -> str:
    """Makes this process's devices ranks of their groups, and returns the name that a call finds these by."""
    digest = hashlib.sha256(json.dumps([groups, axes, lends]).encode()).hexdigest()[:16]
    name, here = f"{axes} {digest[:8]}", jax.process_index()
    mine = [
        (index, rank, device)
        for index, group in enumerate(groups)
        for rank, (process, device) in enumerate(group)
        if process == here
    ]
    indices = sorted({index for index, _, _ in mine})
    if lends:
        with ExitStack() as stack:
            boards = {index: stack.enter_context(nccl.Board(f"{digest}-{index}").shared()) for index in indices}
            for index, rank, device in mine:
                lent.borrow(name, ranks=len(groups[index]), rank=rank, device=device, board=boards[index])
            _tell(f"{digest}/came/{here}", "")
            for process in sorted({process for index in indices for process, _ in groups[index]}):
                _ask(f"{digest}/came/{process}", process, f"joined '{name}'")
        return name
    ids = {}
    for index in indices:
        if (first := groups[index][0][0]) == here:
            _tell(f"{digest}/id/{index}", nccl.unique_id().hex())
        ids[index] = {"": bytes.fromhex(_ask(f"{digest}/id/{index}", first, f"made an id for '{name}'"))}

    def join(index: int, rank: int, device: int) -> None:
        nccl.join(name, ranks=len(groups[index]), rank=rank, ids=ids[index], device=device, deadline_s=None)

    with ThreadPoolExecutor(max(1, len(mine))) as pool:  # each waits for ranks that may be of this process
        list(pool.map(lambda part: join(*part), mine))
    return name


class _Process(NamedTuple):
    """What others need to know of a process: its host, and whether XLA lends it communicators."""

    host: str
    lends: bool


@functools.cache
def _about(process: int) -> _Process:
    _say_about_this()
    return _Process(*json.loads(_ask(f"process/{process}", process, "said on which host it is")))


@functools.cache
def _say_about_this() -> None:
    _tell(f"process/{jax.process_index()}", json.dumps([_host(), nccl.LENT and lent.why_off() is None]))


def _host() -> str:
    """Names this host. Containers of one machine that share no memory have names of their own."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {socket.gethostname()}"


def _tell(key: str, text: str) -> None:
    jax_compat.key_value_store().key_value_set(f"jaxcomm/{key}", text)


def _ask(key: str, process: int, what: str) -> str:
    seconds = ffi.deadline_s()
    try:
        text: str = jax_compat.key_value_store().blocking_key_value_get(f"jaxcomm/{key}", int(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        processes = jax.process_count()
        raise JaxcommError(
            f"DeadlineError: process {process} of {processes} has not {what} after {seconds:.1f} s ({error}).\n"
            "  Cure: have all processes run the same steps; `jaxcomm.init(deadline_s=…)` lets them wait longer."
        ) from error
    return text
