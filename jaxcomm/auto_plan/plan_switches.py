"""Switches this process's calls to another plan; the core carries the switch out."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxcomm import ffi, statistics
from jaxcomm.collectives.choice import AUTO, planned_messages
from jaxcomm.ffi.arguments import PlanSwitch
from jaxcomm.ffi.cpu import CPU

Launches = Mapping[str, int]  # a launch's number on each communicator (devices that call collectives together)
Periods = Mapping[str, list[float]]  # for each step, the seconds from launch to launch


class PlannedLists(NamedTuple):
    """The message lists of a plan.

    Attributes:
      name: the plan's name in statistics and error texts; "" for no plan.
      ranks: the number of ranks that the plan is for.
      lists: a pair for each byte range: its lower limit in bytes, and the encoded lists of all ranks. Instead of the
        lists, () stands for the default schedule.
    """

    name: str
    ranks: int
    lists: list[tuple[int, tuple[bytes, ...]]]


class Switches:
    """Prepares this process's switches and carries them out."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}  # record of the plan that was loaded last

    def load(self, text: str) -> PlannedLists:
        """Proves that a plan computes the sum, and compiles the plan's message lists.

        Args:
          text: the text of the plan's file; "" for no plan.

        Raises:
          PlanError: the plan cannot be read, or does not compute the sum.
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
        """The number of the next launch on each communicator that has had launches."""
        lines = CPU.text("switch_launches").splitlines()
        return {communicator: int(launch) for communicator, launch in map(str.split, lines)}

    def periods(self) -> Periods:
        """For each step, the seconds between its latest launches under the plan that the step follows now."""
        lines = map(str.split, CPU.text("switch_periods").splitlines())
        return {step: [*map(float, seconds)] for step, *seconds in lines}

    def prepare(self, plan: PlannedLists, first: Launches) -> bool:
        """Makes calls wait from the launches `first` on, until `decide` or `fail`.

        Returns False if one of the launches has already begun; then no call waits. The core keeps the plan's lists
        while calls may follow the plan.
        """
        prepared = ctypes.c_int()
        sizes = [len(data) for _, lists in plan.lists for data in lists or [b""] * plan.ranks]
        switch = PlanSwitch(
            plan.name,
            plan.ranks,
            np.array([low for low, _ in plan.lists], np.int64),
            "".join(f"{ffi.messages_name(lists)}\n" for _, lists in plan.lists),
            np.array(sizes, np.int64),
            b"".join(data for _, lists in plan.lists for data in lists),
            len(plan.lists),
            np.array([*map(int, first)], np.uint64),
            np.array([*first.values()], np.uint32),
            len(first),
        )
        CPU.call("switch_prepare", switch, ctypes.byref(prepared))
        return bool(prepared.value)

    def decide(self, commit: bool) -> None:
        """Carries out the prepared switch if `commit`, otherwise drops the switch."""
        CPU.call("switch_decide", commit)
        if commit:
            statistics.record_plans([{"axes": [], **self._loaded}])

    def fail(self, why: str) -> None:
        """Fails the calls that wait for the prepared switch, and all later calls, with the error `why`.

        Called if this process cannot find out whether the other processes carry out the switch.
        """
        CPU.call("switch_fail", why)
