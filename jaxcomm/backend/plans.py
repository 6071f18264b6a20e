"""Sets the lists of messages that the collectives of unchanged programs run: a plan's, or the default ones."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence

import jax

from jaxcomm import ffi
from jaxcomm.collectives import choice, default_schedules
from jaxcomm.collectives.choice import PLANS
from jaxcomm.collectives.communicator import Hashes
from jaxcomm.ffi.cpu import CPU
from jaxcomm.log import say_once


def follow(hashes: Hashes) -> None:
    """Has all-reduces follow a plan from now on, in all processes; calls in flight end first.

    A communicator has no name of an axis, so it is the plan for all axes that counts, for groups of the plan's ranks.

    Args:
      hashes: of the plans by axes, as `communicator.load` returns them.
    """
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # of steps that failed, or arrays that were donated
            array.block_until_ready()
    plans = dict(hashes)
    digest = plans.get((), "")
    if others := [axes for axes in plans if axes]:
        say_once(
            f"collectives of the program's own have no axis: the plans for {', '.join(map(str, others))} are followed "
            "by jaxcomm's calls only."
        )
    set_lists(digest)


def set_lists(digest: str = "") -> None:
    """Hands the lists of a plan to the core, or those of none.

    Args:
      digest: the plan's hash, or "".
    """
    ranges: Sequence[tuple[int, tuple[bytes, ...]]] = ()
    if digest in PLANS:
        ranges = choice.planned_messages(PLANS[digest])
    names = [ffi.register_messages(lists) if lists else "" for _, lists in ranges]
    least = [min_bytes for min_bytes, _ in ranges]
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
    )
