"""Plans that renew themselves: `jaxcomm.init(plan="auto")`.

A job of several processes begins with the default schedules. The first process measures the links once, at the start,
and who arrives when in the run's own calls; when a rank is late, or another one or by another time than before, it
plans in a process of its own. All processes then switch to the plan at one launch of each step, without compiling
anew. If calls take as long as before, they switch back. One line in the log says what changed and what it gained.

It follows all-reduces over all ranks, of steps that are called again and again; a whole training in one call is one
launch, and does not change.

May be imported by communicator; imports choice, distributed, ffi, measure, plan and profile. It runs `jaxcomm plan`.
"""

from jaxcomm.renewal.renewal import begin

__all__ = ["begin"]
