"""Threads stand for the processes of a job and switch plans: each launch follows the same plan in all processes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from jaxcomm import ffi, jax_compat
from jaxcomm.auto_plan import agreement
from jaxcomm.auto_plan.agreement import Agreement
from jaxcomm.auto_plan.plan_switches import Launches, PlannedLists
from jaxcomm.distributed.rails.outages import ProcessGone
from jaxcomm.errors import JaxcommError
from tests.distributed.stores import Store

MODULE = "7"


class FakeCore:
    """Replaces the core of one process: switches with the guarantees of plan_selector.h, and launches of one module."""

    def __init__(self) -> None:
        self.followed: list[str] = []  # the plan of each launch
        self._changed = threading.Condition()
        self._prepared: tuple[int, str] | None = None
        self._plans: dict[int, str] = {}
        self._failure = ""

    def load(self, text: str) -> PlannedLists:
        if text == "broken":
            raise JaxcommError("this plan is broken")
        return PlannedLists(text, 2, [])

    def launches(self) -> dict[str, int]:
        return {MODULE: len(self.followed)} if self.followed else {}

    def prepare(self, plan: PlannedLists, first: Launches) -> bool:
        with self._changed:
            if first[MODULE] < len(self.followed):
                return False
            self._prepared = first[MODULE], plan.name
            return True

    def decide(self, commit: bool) -> None:
        with self._changed:
            if commit and self._prepared:
                first, plan = self._prepared
                self._plans = {launch: each for launch, each in self._plans.items() if launch < first} | {first: plan}
            self._prepared = None
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        with self._changed:
            self._failure = why
            self._changed.notify_all()

    def is_held(self) -> bool:
        with self._changed:
            return self._prepared is not None and len(self.followed) > self._prepared[0]

    def launch(self) -> None:
        with self._changed:
            number = len(self.followed)
            held = self._prepared is not None and number >= self._prepared[0]
            self.followed.append("")
            if held:
                assert self._changed.wait_for(lambda: self._prepared is None or bool(self._failure), timeout=30)
            if self._failure:
                raise JaxcommError(self._failure)
            self.followed[number] = next(
                (self._plans[at] for at in sorted(self._plans, reverse=True) if at <= number), ""
            )


class Job:
    """Processes that launch steps together: each waits until the slowest process has launched the previous step."""

    def __init__(self, processes: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store()
        monkeypatch.setattr(jax_compat, "key_value_store", lambda: store)
        monkeypatch.setattr(agreement, "_POLL_S", 1e-3)
        monkeypatch.setattr(agreement, "_AHEAD_S", 0.02)
        self.store = store
        self.end = threading.Event()
        self.cores = [FakeCore() for _ in range(processes)]
        self.paused: list[tuple[int, int, bool]] = []  # pause number, process, and whether its launch waited
        self.agreements = [
            Agreement(core, i, range(processes), "auto", self.end, partial(self._in_pause, i))
            for i, core in enumerate(self.cores)
        ]
        self.gone: list[dict[str, Any]] = []
        monkeypatch.setattr(ffi, "gone", lambda: self.gone)
        self._random = random.Random(seed)
        self._together = threading.Barrier(processes)

    def _in_pause(self, process: int, number: int) -> str:
        self.paused.append((number, process, self.cores[process].is_held()))
        return "measured"

    def run(self, launches: int, propose: Callable[[Agreement[str]], Any]) -> Any:
        """Trains, calls `propose` in the first process meanwhile, and returns its result."""
        processes = len(self.cores)
        pauses = [[self._random.uniform(0, 2e-3) for _ in range(launches)] for _ in range(processes)]

        def train(process: int) -> None:
            for pause in pauses[process]:
                self._together.wait(30)
                time.sleep(pause)
                self.cores[process].launch()

        def follow(process: int) -> int:
            switched = 0
            while not self.end.wait(1e-3):
                switched += self.agreements[process].follow()
            return switched

        with ThreadPoolExecutor(2 * processes) as pool:
            trained = [pool.submit(train, process) for process in range(processes)]
            followed = [pool.submit(follow, process) for process in range(1, processes)]
            try:
                proposed = propose(self.agreements[0])
                for each in trained:
                    each.result(30)
            finally:
                self.end.set()
            self.switched = [each.result(30) for each in followed]
        return proposed


@pytest.mark.parametrize("seed", range(6))
def test_every_launch_follows_one_plan_in_all_processes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, seed, monkeypatch)

    def propose(first: Agreement[str]) -> list[bool]:
        plans = ["one", "two", "", "three"]
        return [first.propose(plan) for plan in plans if not time.sleep(5e-3)]

    switched = job.run(250, propose)
    followed = job.cores[0].followed
    assert all(core.followed == followed for core in job.cores)
    assert job.switched == [sum(switched)] * 2
    expected = [plan for plan, done in zip(["one", "two", "", "three"], switched, strict=True) if done]
    seen = [plan for i, plan in enumerate(followed) if i == 0 or plan != followed[i - 1]]
    left = iter(expected)  # a plan may run no launch if the next switch is decided early
    assert all(plan in left for plan in seen[1:])
    assert seen[-1] == expected[-1]


def test_a_launch_that_has_begun_keeps_all_from_switching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_AHEAD", -1)
    job = Job(3, 0, monkeypatch)
    monkeypatch.setattr(agreement, "_AHEAD_S", 0.0)
    assert job.run(100, lambda first: [first.propose("one") for _ in range(3) if not time.sleep(0.02)]) == [False] * 3
    assert all(core.followed == [""] * 100 for core in job.cores)


def test_a_plan_that_a_process_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)
    monkeypatch.setattr(job.cores[0], "load", lambda text: PlannedLists(text, 2, []))

    def propose(first: Agreement[str]) -> bool:
        time.sleep(0.01)
        with pytest.raises(JaxcommError, match="process 1: this plan is broken"):
            first.propose("broken")
        return first.propose("one")

    assert job.run(100, propose)
    assert job.cores[0].followed == job.cores[1].followed
    assert {*job.cores[0].followed} == {"", "one"}


def test_no_process_switches_without_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)
    monkeypatch.setattr(agreement, "_OUTCOME_S", 0.2)
    job.cores[1].launch()
    for key, value in {"proposal": '{"plan": "one"}', "from": '{"7": 1}'}.items():
        job.store.key_value_set(f"jaxcomm/auto/1/{key}", value)
    with pytest.raises(JaxcommError, match="no process has published auto/1/outcome"):
        job.agreements[1].follow()
    with pytest.raises(JaxcommError, match="the processes could not agree on a plan"):
        job.cores[1].launch()


def test_where_a_process_does_not_answer_all_go_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)
    monkeypatch.setattr(agreement, "_ANSWERS_S", 0.05)
    for core in job.cores:
        core.launch()
    job.store.key_value_set("jaxcomm/auto/1/loaded/1", '{"launches": {"7": 1}}')
    with pytest.raises(JaxcommError, match="auto/1/prepared/1"):
        job.agreements[0].propose("one")
    assert job.store.values["jaxcomm/auto/1/outcome"] == "abort"
    for _ in range(10):
        job.cores[0].launch()
    assert {*job.cores[0].followed} == {""}


def test_what_was_published_of_older_switches_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)
    job.run(200, lambda first: [first.propose("one") for _ in range(5) if not time.sleep(5e-3)])
    assert {key.split("/")[2] for key in job.store.values} <= {"4", "5", "6"}


def test_in_a_pause_the_calls_of_all_wait_and_nothing_is_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, 0, monkeypatch)

    def propose(first: Agreement[str]) -> list[bool]:
        time.sleep(5e-3)
        return [any(first.propose("one") for _ in range(10)), any(first.pause() == "measured" for _ in range(10))]

    assert job.run(300, propose) == [True, True]
    number = job.paused[0][0]
    assert sorted(job.paused) == [(number, process, True) for process in range(3)]
    assert job.switched == [1, 1]
    assert {*job.cores[0].followed} == {"", "one"}
    assert all(core.followed == job.cores[0].followed for core in job.cores)


def test_what_fails_in_a_pause_is_raised_by_the_first_process_and_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)

    def fails(number: int) -> str:
        raise JaxcommError("rank 1 is gone")

    for each in job.agreements:
        monkeypatch.setattr(each, "_in_pause", fails)

    def propose(first: Agreement[str]) -> None:
        time.sleep(5e-3)
        with pytest.raises(JaxcommError, match="rank 1 is gone"):
            while first.pause() is None:
                pass

    job.run(300, propose)
    assert all(core.followed == [""] * 300 for core in job.cores)


def test_a_process_that_is_behind_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 0, monkeypatch)
    monkeypatch.setattr(agreement, "_ANSWERS_S", 0.02)
    for core in job.cores:
        core.launch()
    for _ in range(4):  # process 1 does not reply yet
        with pytest.raises(JaxcommError, match="loaded/1"):
            job.agreements[0].propose("one")
    monkeypatch.setattr(agreement, "_ANSWERS_S", 30.0)
    assert [job.agreements[1].follow() for _ in range(4)] == [False] * 4
    assert job.run(200, lambda first: any(first.propose("two") for _ in range(20)))
    assert {*job.cores[1].followed} == {"", "two"}
    assert job.cores[0].followed == job.cores[1].followed


DEAD = {"process": 2, "why": "process 2 has died: it was killed, or crashed", "has_left": False}


@pytest.mark.parametrize("way", ["propose", "pause"])
def test_calls_do_not_wait_for_a_process_that_has_died(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, 0, monkeypatch)
    monkeypatch.setattr(agreement, "_AHEAD", 0)
    for core in job.cores:
        core.launch()
    job.store.key_value_set("jaxcomm/auto/1/loaded/2", '{"launches": {"7": 1}}')  # process 2 dies after this reply

    def await_key(key: str) -> None:
        while f"jaxcomm/auto/1/{key}" not in job.store.values:
            time.sleep(1e-3)

    def launch(core: FakeCore) -> None:
        for _ in range(5):
            core.launch()

    with ThreadPoolExecutor(4) as pool:
        first: Any = pool.submit(
            *{"propose": (job.agreements[0].propose, "one"), "pause": (job.agreements[0].pause,)}[way]
        )
        await_key("proposal")
        second = pool.submit(job.agreements[1].follow)
        await_key("prepared/1")
        calls = [pool.submit(launch, core) for core in job.cores[:2]]
        job.gone.append(DEAD)
        with pytest.raises(ProcessGone, match=r"process 2 has died: .*\n  Cure: start all processes again"):
            first.result(10)
        with contextlib.suppress(ProcessGone):  # process 1 may notice the end or the outcome first
            assert not second.result(10)
        for each in calls:
            each.result(10)
    assert [{*core.followed} for core in job.cores[:2]] == [{""}] * 2


def test_who_follows_need_not_hear_of_the_outcome_once_a_process_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, 0, monkeypatch)
    job.cores[1].launch()
    for key, value in {"proposal": '{"plan": "one"}', "from": '{"7": 1}'}.items():
        job.store.key_value_set(f"jaxcomm/auto/1/{key}", value)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(job.agreements[1].follow)
        while "jaxcomm/auto/1/prepared/1" not in job.store.values:
            time.sleep(1e-3)
        job.gone.append(DEAD)
        with pytest.raises(ProcessGone, match="process 2 has died"):
            followed.result(10)
    job.cores[1].launch()
    assert job.cores[1].followed == ["", ""]
