"""Collectives for jitted steps: lax's semantics, one call for a whole tree, and a plan to follow.

The public functions (api, and buckets for a step's gradients) trace lax's and bind primitives of ours in place of lax's
(reroute, primitive). Compiled (lowering), those are requests, and these custom calls of a core (request, custom_call),
also where XLA still partitions the step (partition); replacement does the same for layers that call lax. gradients,
batch_arguments, batch_ties, batch_split and manual_axes are for steps that leave the collectives to jax.jit, bounded
and drop for sums that leave something out, and grouped for groups that are data.
communicator has the active plan and the deadline, choice the program or message lists of a call.
Imports ffi, jax_compat, schedules, program, types of plan and profile, and distributed when a step needs it; finds the
lowering for GPUs by its name (platforms).
"""

from jaxcomm.collectives import lowering
from jaxcomm.collectives.api import all_gather, pcast, pmax, pmean, pmin, psum, psum_scatter
from jaxcomm.collectives.gradients import grad, value_and_grad
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
