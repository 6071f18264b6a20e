"""From a profile to a plan: one folder per decision, OR-Tools where a decision needs a solver.

`make_plan` asks schedules/, step/, rails/, groups/, loss/ and between_hosts in turn, and puts their answers together.
Imports schedules, program, cluster, curve, files, shares, plan, profile and simulate; never JAX. OR-Tools is imported
only when it is needed.
"""

from jaxcomm.planner.make_plan import plan

__all__ = ["plan"]
