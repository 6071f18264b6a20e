"""Virtual time: simulated tasks run one at a time, in an order that follows from one seed.

A task is a greenlet. It runs until it waits, and the scheduler then runs the task or event with the earliest time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Owner:
    """A simulated process, to which tasks belong. A dead owner's tasks end; a stopped owner's tasks wait."""

    is_dead = False
    stopped_until = 0.0


class Task:
    """A greenlet and the number of its latest wait: a wake-up of an earlier wait is ignored."""

    def __init__(self, owner: Owner, run: Callable[[], object], hub: greenlet) -> None:
        self.owner, self.waits = owner, 0
        self.greenlet = greenlet(run, hub)
        self.was_notified = False


Waiters = list[tuple[Task, int]]


class Scheduler:
    """Runs tasks and events in virtual time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.trace: list[tuple[float, str]] = []
        self._queue: list[tuple[float, int, Task | Callable[[], object], int, bool]] = []
        self._count = itertools.count()
        self._hub = getcurrent()
        self._current: Task | None = None
        self._tasks: list[Task] = []

    def say(self, text: str) -> None:
        """Adds a line to the trace."""
        self.trace.append((self.now, text))

    def spawn(self, owner: Owner, run: Callable[[], object]) -> None:
        """Starts a task at the present time."""
        task = Task(owner, run, self._hub)
        self._tasks.append(task)
        self._push(self.now, task, 0, False)

    def at(self, time: float, event: Callable[[], object]) -> None:
        """Calls a function, which must not wait, at a time."""
        self._push(time, event, 0, False)

    def sleep(self, seconds: float) -> None:
        """The present task sleeps."""
        self.wait([], seconds)

    def wait(self, waiters: Waiters, seconds: float | None = None) -> bool:
        """The present task waits until it is notified, or for some seconds. Returns whether it was notified."""
        task = self._current
        assert task is not None, "only tasks wait"
        if task.owner.is_dead:
            raise GreenletExit
        task.waits += 1
        waiters.append((task, task.waits))
        if seconds is not None:
            self._push(self.now + max(seconds, 0.0), task, task.waits, False)
        self._hub.switch()
        if task.owner.is_dead:
            raise GreenletExit
        return task.was_notified

    def notify(self, waiters: Waiters, seconds: float = 0.0) -> None:
        """Wakes all waiters, each after up to some seconds, in random order."""
        for task, number in waiters:
            self._push(self.now + self.random.random() * seconds, task, number, True)
        waiters.clear()

    def wake(self, waiters: Waiters) -> None:
        """Wakes all waiters now, in their order."""
        for task, number in waiters:
            self._push(self.now, task, number, True)
        waiters.clear()

    def end(self, owner: Owner) -> None:
        """Ends all tasks of an owner except the present one. Call it in an event, or in a task of the owner."""
        owner.is_dead = True
        for task in [each for each in self._tasks if each.owner is owner and each is not self._current]:
            self._tasks.remove(task)
            before, self._current = self._current, task
            if task.greenlet:
                task.greenlet.parent = getcurrent()
                task.greenlet.throw(GreenletExit)
            self._current = before

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        """Runs all tasks and events until nothing is left, the condition holds, or a time has come."""
        while self._queue and not is_over():
            time, _, item, number, was_notified = heapq.heappop(self._queue)
            if time > until:
                return
            if not isinstance(item, Task):
                self.now = max(self.now, time)
                item()
            elif item.owner.is_dead or item.waits != number:
                continue
            elif item.owner.stopped_until > time:
                self._push(item.owner.stopped_until, item, number, was_notified)
            else:
                self.now = max(self.now, time)
                item.was_notified, self._current = was_notified, item
                item.waits += 1
                item.greenlet.switch()
                self._current = None

    def _push(self, time: float, item: Any, number: int, was_notified: bool) -> None:
        heapq.heappush(self._queue, (time, next(self._count), item, number, was_notified))
