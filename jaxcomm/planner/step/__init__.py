"""The decision about a training step: which gradients form a bucket, and which schedule each bucket runs.

`boundaries` makes the decision from the options of `jobs`. `greedy` finds a packing to start from, and `bucket_solver`
finds the best packing by CP-SAT. `queue` computes when a step ends, and `bound` gives a lower bound on a step's time.
`relaxed` has the step's time with drops, with averages within groups, or with both. This folder imports the decisions
about schedules and drops.
"""

from jaxcomm.planner.step.boundaries import plan_step
from jaxcomm.planner.step.bucket_solver import Assignment
from jaxcomm.planner.step.relaxed import relaxed_steps

__all__ = ["Assignment", "plan_step", "relaxed_steps"]
