"""The decision about rails: how a buffer of each size is split over unequal interfaces.

`times` reads the measured tables, `split` finds each rail's share of a buffer of one size, and `search` finds the
ranges of sizes that share a split. This folder imports none of the planner's other decisions.
"""

from jaxcomm.planner.rails.search import MIN_GAIN, decide
from jaxcomm.planner.rails.split import seconds

__all__ = ["MIN_GAIN", "decide", "seconds"]
