"""What follows the run of this process: it begins, ends and goes on."""

from __future__ import annotations

from typing import Any

import jax

from jaxcomm import plan_history
from jaxcomm.auto_plan import links
from jaxcomm.auto_plan.auto_plan import AutoPlan
from jaxcomm.distributed import store
from jaxcomm.log import say

_running: tuple[Any, AutoPlan] | None = None  # with the store of the processes that it is of


def begin() -> None:
    """Begins to follow the run, or goes on; all processes call it, once they are connected.

    Raises:
      JaxcommError: not all processes call it, or the links cannot be measured.
    """
    global _running
    if _running is not None and _running[0] is store.client():
        _running[1].go_on()
        return
    process, processes = jax.process_index(), jax.process_count()
    store.publish(f"auto/begun/{process}", "")
    for each in range(processes):
        store.lookup(f"auto/begun/{each}", f"process {each} has not called jaxcomm.init(plan='auto')")
    found = links.measure()
    if process == 0:
        said = f"the links were measured, in {found.took_s:.1f} s; plans follow as the run shows who is late."
        plan_history.record_event(said, "begun")
        say(f"plan='auto': {said}")
    _running = store.client(), AutoPlan(found.links, process, processes, len(jax.devices("cpu")))


def end() -> None:
    """Ends it, until `begin`; the run keeps the plan that it has."""
    if _running is not None:
        _running[1].close()
