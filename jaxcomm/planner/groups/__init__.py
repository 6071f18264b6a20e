"""The decision about groups: which ranks average together in which iteration of divide-and-shuffle.

`divisions` draws divisions that cost no more than a limit, and makes the paper's; `choose` takes the pattern of the
least cost that brings the ranks to agreement soonest.
Imports no other decision.
"""

from jaxcomm.planner.groups.choose import decide, on

__all__ = ["decide", "on"]
