"""The plan that all-reduces of unchanged programs follow, from JAXCOMM_PLAN or `jaxcomm.init`.

Sets the message lists (a schedule's messages, one list per rank) that the programs' collectives run: a plan's lists or
the default lists. With "auto" the run makes plans itself, as for calls of jaxcomm's collectives.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from jaxcomm import environment, ffi
from jaxcomm.collectives import active_plan, choice
from jaxcomm.collectives.active_plan import Hashes
from jaxcomm.collectives.choice import AUTO, PLANS
from jaxcomm.distributed.connect import members
from jaxcomm.ffi.arguments import CollectiveLists
from jaxcomm.ffi.cpu import CPU
from jaxcomm.log import say, say_once
from jaxcomm.schedules import default_schedules

_lock = threading.Lock()  # guards the following variables
_hashes: Hashes = ()  # the plans' axes and hashes, as `active_plan.load` returns them
_begins_auto = False  # whether plan="auto" is to begin at the first program over all processes
_sizes: set[int] = set()  # the numbers of ranks of the groups that run all-reduces


def start() -> None:
    """Follows the plan that JAXCOMM_PLAN names: a file, "auto" or no plan. Does not wait for other processes.

    Raises:
      PlanError: as `active_plan.load`.
    """
    global _begins_auto
    named = os.environ.get(environment.PLAN)
    _begins_auto = named == AUTO
    if _begins_auto:
        members.on_change(lambda membership: begin_auto())
    hashes = (((), AUTO),) if _begins_auto else active_plan.load(named or None)
    active_plan.record(hashes)
    _set(hashes)


def follow(hashes: Hashes) -> None:
    """Makes all-reduces follow a plan from now on, in all processes; waits for calls in flight first.

    Communicators do not name an axis. So all-reduces follow only the plan for all axes, and only in groups that have
    the plan's number of ranks.

    Args:
      hashes: the plans' axes and hashes, as `active_plan.load` returns them. AUTO in place of a hash stands for the
        plans that the run makes.
    """
    global _begins_auto
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # a failed step or a donated array raises here
            array.block_until_ready()
    if others := [axes for axes, _ in hashes if axes]:
        say_once(
            "the program's own collectives have no axis: only jaxcomm's calls follow the plans for "
            f"{', '.join(map(str, others))}."
        )
    _begins_auto = False
    _set(hashes)


def connected() -> None:
    """Connects the processes over the plan's rails, with the plan's transport.

    Raises:
      JaxcommError: as `members.connected`.
    """
    members.connected((), *active_plan.network(_hashes))


def begin_auto() -> None:
    """Begins to make plans if JAXCOMM_PLAN is "auto". All members call this at their first common program."""
    global _begins_auto
    with _lock:
        begins, _begins_auto = _begins_auto, False
    if not begins:
        return
    from jaxcomm import auto_plan

    auto_plan.follow(None)
    try:
        auto_plan.begin(None)
    except Exception as error:  # the program also runs without a plan
        say(f"plan='auto': sums run without a plan: {error}")


def check_sizes(sizes: Iterable[int]) -> None:
    """Logs one line for each number of ranks that the plan does not fit.

    Args:
      sizes: the number of ranks of each group that runs all-reduces.
    """
    with _lock:
        _sizes.update(sizes)
        others = sorted(_sizes)
    if (digest := dict(_hashes).get((), "")) not in PLANS:
        return
    ranks = PLANS[digest].ranks
    for size in others:
        if size not in (1, ranks):
            say_once(
                f"plan {digest[:8]} is for {ranks} ranks: the program's own all-reduces over {size} ranks run what "
                f"they would without a plan.\n  Cure: plan from a profile of {size} ranks."
            )


def _set(hashes: Hashes) -> None:
    """Gives the core the lists of the plan for all axes. Without such a plan the core runs its default lists."""
    global _hashes
    _hashes = hashes
    digest = dict(hashes).get((), "")
    ranges: Sequence[tuple[int, str, tuple[bytes, ...]]] = ()
    if digest in PLANS:
        ranges = choice.planned_messages(PLANS[digest])
    names = [f"{ffi.register_messages(lists)} {kind}" if lists else "" for _, kind, lists in ranges]
    least = [min_bytes for min_bytes, *_ in ranges]
    if least and least[0] > 0:
        least, names = [0, *least], ["", *names]
    lists = CollectiveLists(
        *default_schedules.bounds(),
        digest[:8],
        PLANS[digest].ranks if digest in PLANS else 0,
        np.array(least, np.int64),
        "".join(f"{name}\n" for name in names),
        len(least),
        active_plan.tries(digest),
    )
    CPU.call("backend_lists", lists)
    check_sizes(())
