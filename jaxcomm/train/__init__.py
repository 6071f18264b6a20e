"""What training does with a plan beyond exact sums: gradients without their least important parts, parameters averaged
over a few ranks at a time.

Imports collectives and Optax. Everything here but `layers` is traceable and runs inside the jitted step.
"""

from jaxcomm.collectives.loss import Loss
from jaxcomm.train.averaging import consensus_distance, divide_and_shuffle, exponential_gossip, local_sgd
from jaxcomm.train.bounded_loss import BoundedLossState, bounded_loss
from jaxcomm.train.layers import layers

__all__ = [
    "BoundedLossState",
    "Loss",
    "bounded_loss",
    "consensus_distance",
    "divide_and_shuffle",
    "exponential_gossip",
    "layers",
    "local_sgd",
]
