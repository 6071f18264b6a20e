"""The decision about schedules: the schedule and executor for calls of each size.

`setting` computes the time of a schedule, `candidates` lists the schedules that a call could run, `ranges` finds the
sizes that each choice serves, and `entry` writes the plan's entry. `selectors` pairs schedules from which calls select
by lateness, and `turns` does this if each rank may be the late one. `with_xla` finds the sizes for which XLA's own
collectives take over. `network_search` searches for schedules for hosts whose links differ, `bound` gives a time that
no schedule can beat, and `worth_timing` names the schedules that a profile should time. `make_plan` and the decisions
about halves, lost rails and the step import this folder. It imports none of the planner's other decisions.
"""

from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.cuda_executors import choose_executor
from jaxcomm.planner.schedules.network_search import solved
from jaxcomm.planner.schedules.ranges import entries
from jaxcomm.planner.schedules.selectors import with_selectors
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.schedules.with_xla import WithXla
from jaxcomm.planner.schedules.worth_timing import candidates

__all__ = ["Setting", "WithXla", "candidates", "choose", "choose_executor", "entries", "solved", "with_selectors"]
