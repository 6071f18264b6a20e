"""The decision about drops: the parts of its gradients that a training may leave out, and a full switch drops first.

`policy` makes it: `budget` shares out what all layers may drop, `queue_thresholds` says when a switch's queues drop,
and `published_bounds` lists published shares by model. `ring_cost` is the time of a ring on links that lose packets.
Imports no other decision.
"""

from jaxcomm.planner.drops.policy import decide, gradients

__all__ = ["decide", "gradients"]
