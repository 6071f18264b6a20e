"""From a profile to a plan: one module per decision, OR-Tools where a decision needs a solver.

Imports schedules, plan, profile and simulate; never JAX. OR-Tools is imported only when it is needed.
"""

from jaxcomm.planner.choose import plan

__all__ = ["plan"]
