"""The decision about a training step: which gradients form a bucket, and what each bucket runs.

`boundaries` makes it from the options of `jobs`; `greedy` finds a packing to start from, and
`assignment` the best one by CP-SAT; `queue` says when a step ends. `relaxed` is what the step would take if the
training accepted other mathematics. Imports the decisions about schedules and drops.
"""

from jaxcomm.planner.step.assignment import Assignment
from jaxcomm.planner.step.boundaries import plan_step
from jaxcomm.planner.step.relaxed import relaxed_steps

__all__ = ["Assignment", "plan_step", "relaxed_steps"]
