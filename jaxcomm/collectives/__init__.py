"""Collectives for jitted steps: lax's semantics, one call for a whole tree, and a plan to follow.

The public functions (`api`, and `buckets` for a step's gradients) trace jax.lax's functions and bind our primitives
in place of lax's primitives (`reroute`, `primitive`). `lowering` turns a primitive into a request (`request`), and a
request into a custom call of a core (`custom_call`). `partition` makes this call if XLA still partitions the step.
`replacement` makes the core run the collectives of layers that call jax.lax. `jit` has gradients for steps that
jax.jit partitions. `drops` has sums that may leave parts out, and `grouped` has sums whose groups are an operand.
`permutes` runs collectives as XLA's own permutes. `active_plan` has the active plan and the deadline. `choice` chooses
a call's program or message lists. `platforms` finds the lowering for GPUs by its module's name.

Imports ffi, jax_compat, schedules, program, types of plan and profile, and distributed when a step needs it.
"""

from jaxcomm.collectives import lowering
from jaxcomm.collectives.api import all_gather, pcast, pmax, pmean, pmin, psum, psum_scatter
from jaxcomm.collectives.jit.gradients import grad, value_and_grad
from jaxcomm.collectives.replacement import replace_lax

__all__ = [
    "all_gather",
    "grad",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "psum_scatter",
    "replace_lax",
    "value_and_grad",
]

lowering.register()
