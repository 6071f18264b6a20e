"""A model of JAX's coordination service for a job whose processes may be started again (`recoverable=True`).

`test_simulated_jobs.py` compares it with the real service.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import jax

from tests.distributed.simulated_job.scheduler import Scheduler, Waiters

_T = TypeVar("_T")


def failure(kind: str, text: str) -> Exception:
    """An error as JAX raises it."""
    error: Exception = jax.errors.JaxRuntimeError(f"{kind}: {text}")
    return error


class State(enum.Enum):
    """The state of a process in the service."""

    DISCONNECTED = 0
    CONNECTED = 1
    ERROR = 2  # no heartbeats have arrived


class Service:
    """The service's state. Its methods are what the service does when a request has arrived."""

    def __init__(self, scheduler: Scheduler, processes: int, heartbeat_timeout_s: float = 100.0) -> None:
        self.values: dict[str, str] = {}
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self._scheduler = scheduler
        self._states = dict.fromkeys(range(processes), State.DISCONNECTED)
        self._incarnations = dict.fromkeys(range(processes), 0)
        self._heartbeats = dict.fromkeys(range(processes), 0.0)
        self._changed: Waiters = []
        self._registering: dict[int, dict[str, Any]] | None = {}  # None once all processes have registered
        self._barriers: dict[frozenset[int], tuple[set[int], list[dict[str, Any]]]] = {}
        self._answered: Waiters = []

    def put(self, key: str, value: str, allow_overwrite: bool) -> None:
        if key in self.values and not allow_overwrite:
            raise failure("ALREADY_EXISTS", f"key {key} already exists.")
        self.values[key] = value
        self._scheduler.notify(self._changed)

    def get(self, key: str) -> str:
        if key not in self.values:
            raise failure("NOT_FOUND", f"Config key {key} not found.")
        return self.values[key]

    def wait_for(self, key: str, seconds: float) -> str:
        until = self._scheduler.now + seconds
        while key not in self.values:
            if self._scheduler.now >= until or not self._scheduler.wait(self._changed, until - self._scheduler.now):
                raise failure("DEADLINE_EXCEEDED", f"GetKeyValue() timed out with key: {key}")
        return self.values[key]

    def directory(self, key: str) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]

    def delete(self, key: str) -> None:
        for each in [name for name in self.values if name == key or name.startswith(f"{key}/")]:
            del self.values[each]

    def register(self, process: int, incarnation: int) -> None:
        """Registers a start of a process. The first starts wait until all processes have one."""
        was_connected = self._states[process] is State.CONNECTED
        self._incarnations[process] = incarnation
        if not was_connected and self._registering is not None:
            earlier, answer = self._registering.get(process), self._registering.setdefault(process, {})
            if earlier is not None:
                earlier["error"] = True
                answer = self._registering[process] = {}
            if len(self._registering) == len(self._states):
                for each in self._registering.values():
                    each["error"] = False
                for each_process in self._registering:
                    self._connect(each_process)
                self._registering = None
            self._scheduler.notify(self._answered)
            while "error" not in answer:
                self._scheduler.wait(self._answered)
            if answer["error"]:
                raise failure("ALREADY_EXISTS", "Aborted connect attempt: a request from a newer incarnation.")
            return
        self._connect(process)

    def heartbeat(self, process: int, incarnation: int) -> None:
        if self._states[process] is State.ERROR:
            raise failure("ABORTED", f"Unexpected heartbeat request from an already-in-error task: {process}")
        if self._states[process] is State.CONNECTED and self._incarnations[process] == incarnation:
            self._count_heartbeat(process)

    def shut_down(self, process: int) -> None:
        if self._states[process] is State.DISCONNECTED:
            raise failure("FAILED_PRECONDITION", f"The task is already disconnected: {process}")
        self._states[process] = State.DISCONNECTED
        self._refresh()

    def live_nodes(self, process: int, processes: Collection[int]) -> dict[int, int]:
        """The barrier of the live ones among some processes. A process is identified by its number only."""
        if process not in processes:
            raise failure("INVALID_ARGUMENT", f"Requesting task {process} is not one of the tasks")
        answer: dict[str, Any] = {}
        inside, answers = self._barriers.setdefault(frozenset(processes), (set(), []))
        inside.add(process)
        answers.append(answer)
        self._refresh()
        while "live" not in answer:
            self._scheduler.wait(self._answered)
        found: dict[int, int] = answer["live"]
        return found

    def live(self) -> dict[int, int]:
        """The incarnations of the processes that count as live."""
        return {each: self._incarnations[each] for each, state in self._states.items() if state is State.CONNECTED}

    def _connect(self, process: int) -> None:
        self._states[process] = State.CONNECTED
        self._count_heartbeat(process)

    def _refresh(self) -> None:
        live = self.live()
        for processes, (inside, answers) in [*self._barriers.items()]:
            found = {each: incarnation for each, incarnation in live.items() if each in processes}
            if found.keys() <= inside:
                del self._barriers[processes]
                for answer in answers:
                    answer["live"] = dict(found)
        self._scheduler.notify(self._answered)

    def _count_heartbeat(self, process: int) -> None:
        latest = self._heartbeats[process] = self._scheduler.now

        def check() -> None:
            if self._heartbeats[process] == latest and self._states[process] is State.CONNECTED:
                self._states[process] = State.ERROR
                self._scheduler.say(f"service: no heartbeat of process {process} for {self.heartbeat_timeout_s:g} s")
                self._refresh()

        self._scheduler.at(latest + self.heartbeat_timeout_s, check)


class Client:
    """JAX's client of the service, as one start of a process has it.

    Args:
      service: the service.
      process: the number of the process.
      incarnation: the number of this start.
      request: carries a request to the service, runs it there, and carries the reply back.
    """

    def __init__(
        self,
        service: Service,
        process: int,
        incarnation: int,
        request: Callable[[str, Callable[[], Any]], Any] = lambda name, run: run(),
    ) -> None:
        self._service, self._process, self.incarnation, self._request = service, process, incarnation, request

    def connect(self) -> None:
        self._request("connect", lambda: self._service.register(self._process, self.incarnation))

    def shutdown(self) -> None:
        def run() -> None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._service.shut_down(self._process)

        self._request("shutdown", run)

    def heartbeat(self) -> None:
        self._request("heartbeat", lambda: self._service.heartbeat(self._process, self.incarnation))

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self._request(f"set {key}", lambda: self._service.put(key, value, allow_overwrite))

    def key_value_try_get(self, key: str) -> str:
        found: str = self._request(f"get {key}", lambda: self._service.get(key))
        return found

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str:
        found: str = self._request(f"await {key}", lambda: self._service.wait_for(key, timeout_ms / 1000))
        return found

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self._request(f"list {key}", lambda: self._service.directory(key))
        return found

    def key_value_delete(self, key: str) -> None:
        self._request(f"delete {key}", lambda: self._service.delete(key))

    def get_live_nodes(self, processes: list[int]) -> dict[int, int]:
        found: dict[int, int] = self._request(
            f"live nodes of {len(processes)}", lambda: self._service.live_nodes(self._process, processes)
        )
        return found
