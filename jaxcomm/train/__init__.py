"""Training beyond exact sums: gradients without their least important parts, parameters averaged over a few ranks at a
time.

Imports collectives, plan, profile, ffi and Optax; `adjust_groups` also imports planner, measure and distributed.
`layers`, `adjust_groups` and `group_table` run outside the jitted step. All other functions, and the optimizers and
functions that they return, are traceable.
"""

from jaxcomm.collectives.buckets import pmean_buckets, pmean_in_backward
from jaxcomm.collectives.drops.drop import Drop
from jaxcomm.train.adjustment import Adjustment, adjust_groups
from jaxcomm.train.bounded_drop import BoundedDropState, bounded_drop
from jaxcomm.train.divide_and_shuffle import consensus_distance, divide_and_shuffle, group_table
from jaxcomm.train.gossip import exponential_gossip
from jaxcomm.train.group_network import GroupNetwork
from jaxcomm.train.layers import layers
from jaxcomm.train.outer_steps import OuterState, OuterSteps, local_sgd, outer_steps

__all__ = [
    "Adjustment",
    "BoundedDropState",
    "Drop",
    "GroupNetwork",
    "OuterState",
    "OuterSteps",
    "adjust_groups",
    "bounded_drop",
    "consensus_distance",
    "divide_and_shuffle",
    "exponential_gossip",
    "group_table",
    "layers",
    "local_sgd",
    "outer_steps",
    "pmean_buckets",
    "pmean_in_backward",
]
