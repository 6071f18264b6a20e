"""The decision about rails: how a buffer of each size is split over unequal interfaces.

`times` reads the measured tables, `split` finds the shares for one size, and `search` finds the ranges of sizes that
share a split. This folder imports no other decision.
"""

from jaxcomm.planner.rails.search import MIN_GAIN, decide
from jaxcomm.planner.rails.split import seconds

__all__ = ["MIN_GAIN", "decide", "seconds"]
