"""The decision about loss: what a training may lose of its gradients, and which of them a full switch drops first.

`policy` makes it: `budget` shares out what all layers may lose, `queue_thresholds` says when a switch's queues drop,
and `published_bounds` what models are known to bear. `ring_cost` is the time of a ring on links that lose packets.
Imports no other decision.
"""

from jaxcomm.planner.drops.policy import decide, gradients

__all__ = ["decide", "gradients"]
