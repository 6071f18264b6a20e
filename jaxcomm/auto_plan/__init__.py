"""Plans that renew themselves: `jaxcomm.init(plan="auto")`.

A job of several processes begins with the default schedules. They measure the links at the start; the first one looks
at who arrives when in the run's own calls, and how long these take. When a rank is late, or another one or by another
time than before, it plans in a process of its own. All processes then switch to the plan at one launch of each step,
without compiling anew. If steps take as long as before, they switch back. When calls become slower or faster for long,
all processes measure the links again at one launch, while its calls wait, which takes a percent of the time at most,
and plan again. One line in the log says what changed and what it gained.

When a process is gone it ends; `jaxcomm.init(mesh, plan="auto")` in those that are left begins anew.

It follows all-reduces over all ranks, of steps that are called again and again; a whole training in one call is one
launch, and does not change.

May be imported by backend and initialize; imports choice, distributed, ffi, measure, plan, profile and schedules. It
runs `jaxcomm plan`.
"""

from jaxcomm.auto_plan.running import begin, end

__all__ = ["begin", "end"]
