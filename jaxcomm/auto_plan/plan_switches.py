"""Switches this process's calls to another plan; the core carries it out."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxcomm import ffi, statistics
from jaxcomm.collectives.choice import AUTO, planned_messages
from jaxcomm.ffi.cpu import CPU

Launches = Mapping[str, int]  # by communicator: the groups of devices that call
Periods = Mapping[str, list[float]]  # by step


class PlannedLists(NamedTuple):
    """The message lists of a plan.

    Attributes:
      name: the plan's in statistics and messages; "" for no plan.
      ranks: the number that the plan is for.
      lists: pairs of the least bytes and the encoded lists of all ranks; () for the default schedule.
    """

    name: str
    ranks: int
    lists: list[tuple[int, tuple[bytes, ...]]]


class Switches:
    """The switches of this process."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}  # the record of the plan that was loaded last

    def load(self, text: str) -> PlannedLists:
        """Proves a plan and compiles its lists.

        Args:
          text: of its file; "" for no plan.

        Raises:
          PlanError: it cannot be read, or does not compute the sum.
        """
        self._loaded = {"plan": AUTO}
        if not text:
            return PlannedLists("", 0, [])
        from jaxcomm.plan import files, in_force, proof

        plan = files.decode(text.encode(), "the plan of this run")
        proof.verify_embedded(plan)
        self._loaded = {**in_force.in_force(plan), "file": json.loads(text)}
        lists = [(least, encoded) for least, _, encoded in planned_messages(plan)]
        return PlannedLists(plan.hash[:8], plan.ranks, lists)

    def launches(self) -> dict[str, int]:
        """The next launch on each communicator that has had one."""
        lines = CPU.text("switch_launches").splitlines()
        return {communicator: int(launch) for communicator, launch in map(str.split, lines)}

    def periods(self) -> Periods:
        """Seconds from each of a step's latest launches to the next one, under the plan that it follows now."""
        lines = map(str.split, CPU.text("switch_periods").splitlines())
        return {step: [*map(float, seconds)] for step, *seconds in lines}

    def prepare(self, plan: PlannedLists, first: Launches) -> bool:
        """Has calls wait from these launches on, until `decide` or `fail`; False: a launch has begun, so nothing waits.

        The core keeps the plan's lists as long as calls may follow it.
        """
        prepared = ctypes.c_int()
        sizes = [len(data) for _, lists in plan.lists for data in lists or [b""] * plan.ranks]
        CPU.call(
            "switch_prepare",
            plan.name,
            plan.ranks,
            (ctypes.c_int64 * len(plan.lists))(*(low for low, _ in plan.lists)),
            "".join(f"{ffi.messages_name(lists)}\n" for _, lists in plan.lists),
            (ctypes.c_int64 * len(sizes))(*sizes),
            b"".join(data for _, lists in plan.lists for data in lists),
            len(plan.lists),
            (ctypes.c_uint64 * len(first))(*map(int, first)),
            (ctypes.c_uint32 * len(first))(*first.values()),
            len(first),
            ctypes.byref(prepared),
        )
        return bool(prepared.value)

    def decide(self, commit: bool) -> None:
        """Carries out the prepared switch, or drops it."""
        CPU.call("switch_decide", commit)
        if commit:
            statistics.record_plans([{"axes": [], **self._loaded}])

    def fail(self, why: str) -> None:
        """Ends the waiting calls and all later ones with this error, where the outcome cannot be known."""
        CPU.call("switch_fail", why)
