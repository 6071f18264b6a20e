"""Allreduces of an NCCL group by the fused executor, in memory that NCCL lets all ranks reach: its windows.

nccl.join("data", ranks=4, rank=0, ids=ids)  # every rank
y = windows.all_reduce(x, schedules.direct(4), "data")  # inside or outside of jit
fused.check()  # whether it failed
nccl.leave("data")

For ranks that NVLink connects, on one host or in one rack, from NCCL 2.29 on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jaxcomm.ffi import cuda, fused

if TYPE_CHECKING:
    from jaxcomm.schedules import Schedule

TARGET = "jaxcomm_windows"
_STAGES = ("instantiate", "initialize", "execute")


def all_reduce(tree: Any, schedule: Schedule, group: str, *, reduction: str = "sum") -> Any:
    """The sum over all ranks of a group of a tree of arrays on a CUDA device, with the bits of the schedule's program.

    The first call for a schedule, type and size of an array waits for the other ranks, and sets as much memory aside
    until the group is left. Later calls only copy and launch. Several devices of a process call from a thread each.
    `fused.MULTICAST` says whether a switch makes the copies of what goes to all ranks.

    Args:
      tree: an array, or a tree of arrays.
      schedule: for all ranks of the group.
      group: the name that `nccl.join` was given.
      reduction: "sum", "max" or "min".

    Returns:
      A tree like `tree`. If a rank missed the deadline it is worthless: `fused.check` raises then, and so does the next
      call.

    Raises:
      JaxcommError: there is no CUDA core. What goes wrong in the call is an error of JAX's, with a message of ours, as
        that NCCL has no windows here, or that a rank is out of reach.
    """
    register()
    return cuda.all_reduce(
        TARGET,
        tree,
        reduction,
        in_place=False,
        group=group,
        plan=schedule.kind,
        program=fused.registered_program(schedule),
        multicast=fused.MULTICAST,
    )


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once; that needs neither device nor NCCL."""
    import jax

    core = cuda.core()
    capsule: Any = jax.ffi.pycapsule
    stages = {stage: capsule(getattr(core, f"JaxcommWindows{stage.title()}")) for stage in _STAGES}
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA")
