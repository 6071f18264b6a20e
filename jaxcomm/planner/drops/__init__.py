"""The decision about drops: the parts of gradients that training may lose, and the parts that a switch drops first.

`policy` makes the decision. `budget` divides the allowed drops among the layers, `queue_thresholds` says when a
switch's queues drop, and `published_bounds` lists published shares by model. `ring_cost` has the time of a ring on
links that lose packets. This folder imports no other decision.
"""

from jaxcomm.planner.drops.policy import decide, gradients

__all__ = ["decide", "gradients"]
