"""How the processes of a job switch to a plan at one launch of each of their modules.

The first process proposes, and publishes what follows; the others publish their answers. All load the plan and say how
often each module has been launched; the first process names a later launch of each; all prepare to switch there; if
all could, it commits, else it aborts. From the moment at which a process has prepared until it knows the outcome, its
calls of those launches wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from jaxcomm.choice import PLANS, planned_messages
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.cpu import CPU

_POLL_S: Final = 0.02
_ANSWER_S: Final = 60.0  # for a process to load a plan, and to hear the outcome
_AHEAD_S: Final = 1.0  # from when launches are counted to the one that switches
_AHEAD: Final = 4  # launches more

Launches = Mapping[str, int]  # the next one of each module


class Agreement:
    """The processes' switches, one after the other.

    agreement = Agreement(process=0, processes=4, end=threading.Event())
    switched = agreement.propose(plan)  # the first process
    switched = agreement.follow()  # the others, now and then
    """

    def __init__(self, process: int, processes: int, end: threading.Event) -> None:
        """Takes which one of how many this is, and what is set when nobody will wait any more."""
        self._process, self._processes, self._end = process, processes, end
        self._number = 0

    def propose(self, plan: str) -> bool:
        """Switches all processes to a plan.

        Args:
          plan: the text of its file; "" for the schedules of no plan.

        Returns:
          Whether they have: not if a module was launched too fast, or a process has none of the modules yet.

        Raises:
          JaxcommError: a process cannot load the plan, does not answer, or is gone.
        """
        own = _load(plan)
        key = self._next_key()
        before, since = next_launches(), time.monotonic()
        first: dict[str, int] = {}
        store.publish(f"{key}/plan", plan)
        try:
            others = [json.loads(self._await(f"{key}/loaded/{process}")) for process in range(1, self._processes)]
            if refusals := [answer["refusal"] for answer in others if "refusal" in answer]:
                raise JaxcommError(refusals[0])
            elapsed = time.monotonic() - since
            counted: list[Launches] = [next_launches(), *(answer["launches"] for answer in others)]
            for module in set.intersection(*(set(each) for each in counted)):
                launch = max(each[module] for each in counted)
                rate = (launch - before.get(module, 0)) / elapsed
                first[module] = launch + _AHEAD + math.ceil(rate * _AHEAD_S)
        finally:
            store.publish(f"{key}/from", json.dumps(first))
        if not first:
            return False
        prepared = _prepare(own, first)
        try:
            said = [self._await(f"{key}/prepared/{process}") for process in range(1, self._processes)]
            commit = prepared and all(answer == "yes" for answer in said)
            store.publish(f"{key}/outcome", "commit" if commit else "abort")
        except Exception as error:
            _fail(prepared, error)
            raise
        if prepared:
            CPU.call("switch_decide", commit)
        return commit

    def follow(self) -> bool:
        """Takes part in what the first process proposes, if it has; whether this process has switched.

        Raises:
          JaxcommError: the first process does not answer, or is gone.
        """
        key = f"auto/{self._number + 1}"
        plan = store.find(f"{key}/plan")
        if plan is None:
            return False
        self._next_key()
        try:
            own = _load(plan)
        except JaxcommError as error:
            answer: dict[str, Any] = {"refusal": f"process {self._process}: {error}"}
        else:
            answer = {"launches": next_launches()}
        store.publish(f"{key}/loaded/{self._process}", json.dumps(answer))
        first = json.loads(self._await(f"{key}/from"))
        if not first:
            return False
        prepared = _prepare(own, first)
        try:
            store.publish(f"{key}/prepared/{self._process}", "yes" if prepared else "no")
            commit = self._await(f"{key}/outcome") == "commit"
        except Exception as error:
            _fail(prepared, error)
            raise
        if prepared:
            CPU.call("switch_decide", commit)
        return commit

    def _next_key(self) -> str:
        """That of the next switch; what was published of the one before the last is forgotten."""
        self._number += 1
        if self._process == 0 and self._number > 2:
            with contextlib.suppress(Exception):  # it only takes room
                store.remove(f"auto/{self._number - 2}")
        return f"auto/{self._number}"

    def _await(self, key: str) -> str:
        deadline = time.monotonic() + _ANSWER_S
        while (found := store.find(key)) is None:
            if self._end.wait(_POLL_S):
                raise JaxcommError("the run has ended")
            if time.monotonic() > deadline:
                raise JaxcommError(f"no process has published {key} after {_ANSWER_S:g} s")
        return found


def next_launches() -> dict[str, int]:
    """The next launch of each module of this process, by its number."""
    lines = CPU.text("switch_launches").splitlines()
    return {module: int(launch) for module, launch in map(str.split, lines)}


def _load(text: str) -> tuple[str, int, list[tuple[int, str]]]:
    """The plan's name, ranks and lists, proved and given to the core."""
    if not text:
        return "", 0, []
    from jaxcomm.plan import files, proof

    plan = files.decode(text.encode(), "the plan of this run")
    proof.verify_embedded(plan)
    PLANS[plan.hash] = plan
    return plan.hash[:8], plan.ranks, planned_messages(plan)


def _prepare(plan: tuple[str, int, list[tuple[int, str]]], first: Launches) -> bool:
    name, ranks, lists = plan
    prepared = ctypes.c_int()
    arrays: tuple[Any, ...] = (
        (ctypes.c_int64 * len(lists))(*(low for low, _ in lists)),
        (ctypes.c_uint64 * len(first))(*map(int, first)),
        (ctypes.c_uint32 * len(first))(*first.values()),
    )
    names = "".join(f"{each}\n" for _, each in lists)
    CPU.call(
        "switch_prepare", name, ranks, arrays[0], names, len(lists), *arrays[1:], len(first), ctypes.byref(prepared)
    )
    return bool(prepared.value)


def _fail(prepared: bool, error: Exception) -> None:
    if prepared:
        CPU.call("switch_fail", f"the processes could not agree on a plan: {error}")
