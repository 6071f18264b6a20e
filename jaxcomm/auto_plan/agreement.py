"""Switches the processes of a job to a plan, all at the same launch on each communicator.

A communicator is a group of devices that call collectives together. The first process publishes its proposals and
decisions; the other processes publish their replies. All processes load the plan and count the launches on each
communicator. For each communicator the first process names a later launch, and all processes prepare to switch at that
launch. If all processes are prepared, the first process commits the switch; otherwise the first process aborts the
switch. A prepared process holds its calls, from the named launches on, until it learns the outcome.

A pause also holds calls, but switches nothing: all processes prepare, and each process calls `in_pause` while its calls
wait.

After a process has ended, the processes make no further agreements. Waiting calls continue, and calls that need the
ended process fail.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from jaxcomm.auto_plan.plan_switches import Launches, PlannedLists
from jaxcomm.distributed import store
from jaxcomm.distributed.rails import outages
from jaxcomm.distributed.rails.outages import ProcessGone
from jaxcomm.errors import JaxcommError

_POLL_S: Final = 0.02
_ANSWERS_S: Final = 60.0  # time limit for all processes' replies to the first process
_OUTCOME_S: Final = 150.0  # time limit for the first process to publish the outcome
_AHEAD_S: Final = 1.0  # a switch is planned this many seconds plus _AHEAD launches ahead
_AHEAD: Final = 4  # launches; see _AHEAD_S
_HELD_S: Final = 30.0  # in a pause, a process calls `in_pause` after this time even if none of its calls waits

_T = TypeVar("_T")


class SwitchingCore(Protocol):
    """Carries out the switches of a process; see `jaxcomm.auto_plan.plan_switches.Switches`."""

    def load(self, text: str) -> PlannedLists: ...
    def launches(self) -> dict[str, int]: ...
    def prepare(self, plan: PlannedLists, first: Launches) -> bool: ...
    def decide(self, commit: bool) -> None: ...
    def fail(self, why: str) -> None: ...


class Agreement(Generic[_T]):
    """Agrees with all processes on switches and pauses, one after the other.

    agreement = Agreement(Switches(), 0, range(4), "auto", end=threading.Event(), in_pause=measure)
    switched = agreement.propose(plan)  # in the first process
    measured = agreement.pause()
    switched = agreement.follow()  # in the other processes, repeatedly
    """

    def __init__(
        self,
        core: SwitchingCore,
        process: int,
        processes: Sequence[int],
        name: str,
        end: threading.Event,
        in_pause: Callable[[int], _T],
    ) -> None:
        """Creates the agreement. The first switch or pause has number 1.

        Args:
          core: this process's core.
          process: the number of this process.
          processes: the processes that agree; the first of these processes proposes.
          name: prefix of these processes' keys in the key-value store.
          end: set when the run ends.
          in_pause: called in a pause in all processes; takes the pause's number.
        """
        self._core = core
        self._process, self._processes, self._name, self._end = process, processes, name, end
        self._in_pause = in_pause
        self._number = 0
        self._published: list[int] = []  # numbers of the switches and pauses whose keys are in the store

    def propose(self, plan: str) -> bool:
        """Switches all processes to a plan.

        Args:
          plan: the text of the plan's file; "" for the default schedules, without a plan.

        Returns:
          Whether all processes have switched. False if launches follow each other too fast, or if there is no
          communicator on which every process has launched.

        Raises:
          JaxcommError: a process cannot load the plan, or does not reply.
          ProcessGone: a process has ended.
        """
        own = self._core.load(plan)
        key = self._next_key()
        prepared, _ = self._prepare(key, {"plan": plan}, own)
        commit = False
        try:
            commit = prepared and self._all_are_prepared(key)
        finally:
            self._end_switch(prepared, lambda: self._publish_outcome(key, commit))
        return commit

    def pause(self) -> _T | None:
        """Calls `in_pause` in all processes while their calls wait, and returns this process's result.

        Returns None if the calls could not be held, for the reasons for which `propose` returns False.

        Raises:
          JaxcommError: as for `propose`; an error of `in_pause` in this process is raised, too.
        """
        key = self._next_key()
        prepared, first = self._prepare(key, {"plan": None}, self._core.load(""))
        begins = False
        try:
            try:
                begins = prepared and self._all_are_prepared(key)
            finally:
                store.publish(f"{key}/begins", json.dumps(begins))
            return self._do_in_pause(first) if begins else None
        finally:
            self._end_switch(prepared, lambda: self._publish_outcome(key, commit=False))

    def _prepare(self, key: str, proposal: Mapping[str, Any], own: PlannedLists) -> tuple[bool, dict[str, int]]:
        """Publishes a proposal, and names a later launch for each communicator.

        This process's calls wait from the named launches on. Returns whether the calls wait, and the named launches.
        """
        before, since = self._core.launches(), time.monotonic()
        first: dict[str, int] = {}
        self._published.append(self._number)
        store.publish(f"{key}/proposal", json.dumps(proposal))
        try:
            others = [json.loads(answer) for answer in self._answers(f"{key}/loaded")]
            self._forget_older()
            if refusals := [answer["refusal"] for answer in others if "refusal" in answer]:
                raise JaxcommError(refusals[0])
            elapsed = time.monotonic() - since
            counted: list[Launches] = [self._core.launches(), *(answer["launches"] for answer in others)]
            for communicator in set.intersection(*(set(each) for each in counted)):
                launch = max(each[communicator] for each in counted)
                rate = (launch - before.get(communicator, 0)) / elapsed
                first[communicator] = launch + _AHEAD + math.ceil(rate * _AHEAD_S)
        finally:
            store.publish(f"{key}/from", json.dumps(first))
        return bool(first) and self._core.prepare(own, first), first

    def _all_are_prepared(self, key: str) -> bool:
        return all(answer == "yes" for answer in self._answers(f"{key}/prepared"))

    def follow(self) -> bool:
        """Replies to the first process's next proposal, if there is one; returns whether this process has switched.

        Raises:
          JaxcommError: the first process does not reply.
          ProcessGone: a process has ended.
        """
        self.require_all()
        proposed = store.find(f"{self._name}/{self._number + 1}/proposal")
        if proposed is None:
            return False
        key, plan = self._next_key(), json.loads(proposed)["plan"]
        try:
            own = self._core.load(plan or "")
        except JaxcommError as error:
            answer: dict[str, Any] = {"refusal": f"process {self._process}: {error}"}
        else:
            answer = {"launches": self._core.launches()}
        store.publish(f"{key}/loaded/{self._process}", json.dumps(answer))
        first = json.loads(self._await(f"{key}/from", _OUTCOME_S))
        if not first:
            return False
        prepared = self._core.prepare(own, first)

        def outcome() -> bool:
            store.publish(f"{key}/prepared/{self._process}", "yes" if prepared else "no")
            if plan is None and json.loads(self._await(f"{key}/begins", _OUTCOME_S, to_the_end=not prepared)):
                with contextlib.suppress(Exception):  # the first process reports failures; here calls continue
                    self._do_in_pause(first)
            return self._await(f"{key}/outcome", _OUTCOME_S, to_the_end=not prepared) == "commit"

        return self._end_switch(prepared, outcome)

    def require_all(self) -> None:
        """Raises ProcessGone if a process has ended."""
        outages.require_processes(self._processes, "the processes do not switch plans any more")

    def _end_switch(self, prepared: bool, outcome: Callable[[], bool]) -> bool:
        """Carries out the decision that `outcome` returns, and returns this decision."""
        try:
            commit = outcome()
        except ProcessGone:
            if prepared:
                # Safe even if other processes switch: a switch affects only calls of all ranks, and these fail because
                # a process has ended.
                self._core.decide(commit=False)
            raise
        except Exception as error:
            if prepared:
                self._core.fail(f"the processes could not agree on a plan: {error}")
            raise
        if prepared:
            self._core.decide(commit)
        return commit

    def _do_in_pause(self, first: Launches) -> _T:
        """Calls `in_pause` when a call of this process waits, or after _HELD_S without a waiting call."""
        deadline = time.monotonic() + _HELD_S
        while time.monotonic() < deadline and not self._end.is_set():
            self.require_all()
            launches = self._core.launches()
            if any(launches.get(communicator, 0) > launch for communicator, launch in first.items()):
                break
            time.sleep(_POLL_S)
        return self._in_pause(self._number)

    def _publish_outcome(self, key: str, commit: bool) -> bool:
        store.publish(f"{key}/outcome", "commit" if commit else "abort")
        return commit

    def _answers(self, key: str) -> list[str]:
        """The replies of the other processes."""
        deadline = time.monotonic() + _ANSWERS_S
        return [self._await(f"{key}/{each}", deadline - time.monotonic()) for each in self._processes[1:]]

    def _next_key(self) -> str:
        """The key of the next switch or pause."""
        self._number += 1
        return f"{self._name}/{self._number}"

    def _forget_older(self) -> None:
        """Removes the keys of earlier numbers. Call it only when all processes have reached the present number."""
        for number in self._published[:-1]:
            with contextlib.suppress(Exception):  # a remaining key only takes memory
                store.remove(f"{self._name}/{number}")
        del self._published[:-1]

    def _await(self, key: str, seconds: float, *, to_the_end: bool = True) -> str:
        """Waits for a key and returns its value. With `to_the_end`, fails when the run ends."""
        deadline = time.monotonic() + seconds
        while (found := store.find(key)) is None:
            self.require_all()
            if self._end.wait(_POLL_S):
                if to_the_end:
                    raise JaxcommError("the run has ended")
                time.sleep(_POLL_S)
            if time.monotonic() > deadline:
                raise JaxcommError(f"no process has published {key} in time")
        return found
