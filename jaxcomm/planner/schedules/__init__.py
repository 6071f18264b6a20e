"""The decision about schedules: which one serves a call of which size, in which executor.

`setting` says what a schedule takes, `candidates` what a call could run, `ranges` which choice serves which sizes, and
`entry` what the plan says of it; `selectors` finds those from which calls select, `turns` for ranks that are late by
turns, and `with_xla` where XLA's own collectives take over. `network_solver` finds schedules for hosts whose links
differ, and `bound` gives the least time that any schedule takes.
Imported by the whole plan, by `halves` and by the step; imports no other decision.
"""

from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.cuda_executors import choose_executor
from jaxcomm.planner.schedules.network_solver import solved
from jaxcomm.planner.schedules.ranges import entries
from jaxcomm.planner.schedules.selectors import with_selectors
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.schedules.with_xla import WithXla

__all__ = ["Setting", "WithXla", "choose", "choose_executor", "entries", "solved", "with_selectors"]
