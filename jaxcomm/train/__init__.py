"""What training does with a plan beyond exact sums: gradients that may lose their least important parts.

For Optax; imports collectives. Everything here is traceable and runs inside the jitted step.
"""

from jaxcomm.collectives.bounded import Loss
from jaxcomm.train.bounded_loss import BoundedLossState, bounded_loss

__all__ = ["BoundedLossState", "Loss", "bounded_loss"]
