"""The decision about groups: which ranks average together in which iteration of divide-and-shuffle.

`divisions` draws divisions that cost no more than a limit, and builds the paper's pattern. `search` improves patterns.
Among the patterns of the least cost, `choose` takes the one that brings the ranks to agreement soonest. This folder
imports no other decision.
"""

from jaxcomm.planner.groups.choose import decide, on

__all__ = ["decide", "on"]
