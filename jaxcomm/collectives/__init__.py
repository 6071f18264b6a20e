"""Collectives for jitted steps: lax's semantics, one call for a whole tree, and a plan to follow.

The public functions (api, and buckets for a step's gradients) trace lax's and bind primitives of ours in place of lax's
(reroute, primitive). Compiled (lowering), those are requests, and these custom calls of a core (request, custom_call),
also where XLA still partitions the step (partition); replacement does the same for layers that call lax. gradients (and
split) are for steps that leave the collectives to jax.jit.
May be imported by cli, gpu, measure and train; imports communicator, ffi and jax_compat.
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
