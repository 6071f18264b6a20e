"""Plans that renew themselves: `jaxcomm.init(plan="auto")`.

A job of several processes begins with the default schedules, and measures the links at the start. The first process
watches when ranks arrive at the run's own calls, and how long these calls take. When a rank becomes late, or the late
ranks or their lateness change, the first process plans in a separate process. All processes then switch to the plan at
the same launch of each step, without compiling again. If steps do not become shorter, the processes switch back. When
calls have become slower or faster and stay so, all processes hold the calls of one launch and measure the links again.
The first process then plans again. These measurements take at most one percent of the time. One line in the log says
what changed and what the plan gained.

When a process ends, planning also ends. It starts again when `live_devices` has connected the live processes, or when
the remaining processes call `jaxcomm.init(mesh, plan="auto")`.

Plans cover all-reduces over all ranks, in steps that are called repeatedly. If a whole training run is one call, it is
a single launch, so its plan never changes.

May be imported by backend and initialize; imports choice, distributed, ffi, measure, plan, profile and schedules. Runs
the command `jaxcomm plan`.
"""

from jaxcomm.auto_plan.running import begin, end, follow

__all__ = ["begin", "end", "follow"]
