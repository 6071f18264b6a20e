"""The plan that all-reduces of unchanged programs follow: that of JAXCOMM_PLAN, or of `jaxcomm.init`.

It sets the lists of messages that their collectives run: a plan's, or the default ones; with "auto" the run makes plans
as it does for calls of jaxcomm.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterable, Sequence

import jax

from jaxcomm import environment, ffi
from jaxcomm.collectives import choice, communicator, default_schedules
from jaxcomm.collectives.choice import AUTO, PLANS
from jaxcomm.collectives.communicator import Hashes
from jaxcomm.distributed import members
from jaxcomm.ffi.cpu import CPU
from jaxcomm.log import say, say_once

_lock = threading.Lock()  # of what follows
_hashes: Hashes = ()  # of the plans by axes, as `communicator.load` returns them
_begins_auto = False  # once all processes come to a program over all of them
_sizes: set[int] = set()  # the ranks of groups that all-reduce


def start() -> None:
    """Follows the plan of JAXCOMM_PLAN: a file, "auto" or none. Waits for no process.

    Raises:
      PlanError: as `communicator.load`.
    """
    global _begins_auto
    named = os.environ.get(environment.PLAN)
    _begins_auto = named == AUTO
    hashes = (((), AUTO),) if _begins_auto else communicator.load(named or None)
    communicator.record(hashes)
    _set(hashes)


def follow(hashes: Hashes) -> None:
    """Has all-reduces follow a plan from now on, in all processes; calls in flight end first.

    A communicator has no name of an axis, so it is the plan for all axes that counts, for groups of the plan's ranks.

    Args:
      hashes: of the plans by axes, as `communicator.load` returns them; with AUTO in place of a hash, the plans that
        the run makes.
    """
    global _begins_auto
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # of steps that failed, or arrays that were donated
            array.block_until_ready()
    if others := [axes for axes, _ in hashes if axes]:
        say_once(
            f"collectives of the program's own have no axis: the plans for {', '.join(map(str, others))} are followed "
            "by jaxcomm's calls only."
        )
    _begins_auto = False
    _set(hashes)


def connected() -> None:
    """Connects the processes, by the rails and the transport of the plan.

    Raises:
      JaxcommError: as `members.connected`.
    """
    members.connected((), *communicator.network(_hashes))


def begin_auto() -> None:
    """Begins to make plans if JAXCOMM_PLAN is "auto": all processes call it, after a first sum over all of them."""
    global _begins_auto
    with _lock:
        begins, _begins_auto = _begins_auto, False
    if not begins:
        return
    from jaxcomm import auto_plan

    try:
        auto_plan.begin(None)
    except Exception as error:  # the program runs without a plan as well
        say(f"plan='auto': sums run without a plan: {error}")


def check_sizes(sizes: Iterable[int]) -> None:
    """Logs one line for each number of ranks for which the plan is not.

    Args:
      sizes: the ranks of groups that all-reduce.
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
    """Hands the lists of a plan to the core, or those of none."""
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
    CPU.call(
        "backend_lists",
        *default_schedules.bounds(),
        digest[:8],
        PLANS[digest].ranks if digest in PLANS else 0,
        (ctypes.c_int64 * len(least))(*least),
        "".join(f"{name}\n" for name in names),
        len(least),
        communicator.tries(digest),
    )
    check_sizes(())
