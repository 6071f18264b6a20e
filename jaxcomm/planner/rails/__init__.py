"""The decision about rails: how a buffer of any size is split over interfaces that differ.

`times` reads the measured tables, `split` finds the shares for one size, and `search` the ranges of sizes that share a
split. `link_times` says what a schedule takes on a split.
Imports no other decision.
"""

from jaxcomm.planner.rails.link_times import RailLink, RailLinks, phases_on, rail_links, seconds
from jaxcomm.planner.rails.search import MIN_GAIN, decide

__all__ = ["MIN_GAIN", "RailLink", "RailLinks", "decide", "phases_on", "rail_links", "seconds"]
