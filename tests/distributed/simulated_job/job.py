"""A history of a simulated job: a training by steps, faults that strike it, and the invariants that must hold.

`run(seed)` returns the history. All that happens in it follows from the seed.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from greenlet import GreenletExit
from jax.experimental.multihost_utils import ProcessFailureError, _live_devices, _LiveDevices

from jaxcomm import errors
from jaxcomm.distributed.connect.generations import entry_of_ended
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.errors import DeadlineError
from tests.distributed.simulated_job.scheduler import Owner, Scheduler, Waiters
from tests.distributed.simulated_job.service import Client, Service
from tests.distributed.simulated_job.start import Core, Start
from tests.distributed.simulated_job.supervisor import Launcher

BLOCKS, BLOCK = 6, 2  # blocks of the training, steps of a block
LONGEST_S: Final = 3000.0  # virtual time after which a job that has not ended hangs
_MEMBERS: Final = "jaxcomm.distributed.connect.members"
_OTHER_SEED: Final = 1 << 41
_STORE: Final = "jaxcomm.distributed.store"


class Fault(NamedTuple):
    """A fault that strikes a process at an operation.

    Attributes:
      kind: "kill", "kill the others", "kill all", "stop", "partition", "preempt" or "twin".
      process: the number of the process.
      life: the number of the process's start.
      barrier: the number of barriers that this start has passed, the one that tells it its incarnation included.
      operation: the number of operations since then.
      seconds: how long a process is stopped or cannot reach the service.
    """

    kind: str
    process: int
    life: int
    barrier: int
    operation: int
    seconds: float


class History(NamedTuple):
    """A finished history. `wrong` has the invariants that did not hold."""

    seed: int
    wrong: list[str]
    trace: list[tuple[float, str]]
    faults: list[Fault]
    longest: dict[str, float]

    def text(self) -> str:
        """The trace, a line for each event."""
        lines = [f"{time:10.4f} {text}" for time, text in self.trace]
        return "\n".join([f"seed {self.seed}: {self.faults}", *lines, *(f"WRONG: {each}" for each in self.wrong)])


def run(seed: int) -> History:
    """Runs one history."""
    job = Job(seed)
    job.run()
    return History(seed, job.wrong, job.scheduler.trace, job.faults, job.longest)


class Job:
    """The processes of a job, their supervisor and the coordination service."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        random = self.scheduler.random
        self.processes = random.choice([2, 2, 3, 3, 3, 4, 5, 8])
        self.is_launched = random.random() < 0.7  # by `jaxcomm launch --restart`, not by another supervisor
        self.has_auto_plan = random.random() < 0.3
        own = Random(seed + _OTHER_SEED)  # drawn apart, so that the histories of older seeds stay
        grows = not self.is_launched and own.random() < 0.4
        self.live = own.randrange(1, self.processes) if grows else self.processes  # at the start of the job
        self._joins = {each: own.uniform(0.0, 8.0) for each in range(self.live, self.processes) if own.random() < 0.9}
        hosts = random.choice([1, 1, 2, self.processes])
        self.settings = [Settings(host=f"host{each % hosts}") for each in range(self.processes)]
        self.service = Service(self.scheduler, self.processes)
        self.numbers = itertools.count(1)
        self.files: dict[int, Core] = {}
        self.listeners: dict[tuple[str, int], Any] = {}
        self.starts: list[Start] = []
        self.faults = self._faults()
        self.wrong: list[str] = []
        self.longest: dict[str, float] = {}
        self._to_strike = list(self.faults)
        self._mean_s = random.choice([0.0001, 0.0005, 0.002])
        self._slow_from = random.choice([1e9, 1e9, 1e9, random.uniform(0, 5)])
        self._slow_until = self._slow_from + random.uniform(0.1, 3)
        self._ended: deque[tuple[int, int]] = deque()
        self._woken: Waiters = []
        self.launcher = Launcher(self, seed) if self.is_launched else None
        self._supervisor = self.launcher or Owner()
        self._pending = 0  # starts that are planned
        self.is_failing = False
        self._struck: dict[int, float] = {}  # by process: when a fault last struck it
        self._generations: dict[str, dict[int, int]] = {}
        self._counts: dict[tuple[str, int], dict[int, int]] = {}
        self._changes: Counter[tuple[Start, str]] = Counter()
        self._has_finished = False
        self._costs = 0  # starts that faults may have ended
        self._contributions: dict[tuple[str, int], tuple[int, int]] = {}

    def _faults(self) -> list[Fault]:
        random = self.scheduler.random
        kinds = ["kill"] * 6 + ["kill the others", "kill all", "stop", "stop", "partition", "preempt"]
        kinds += [] if self.is_launched else ["twin", "twin"]
        faults = []
        for _ in range(random.choice([0, 1, 1, 2, 2, 3, 4])):
            barrier = random.choice([0, 1, 1, 2, 2, 3, 4, 5])
            fault = Fault(
                random.choice(kinds),
                random.choice([0, random.randrange(self.processes)]),
                random.choice([0, 0, 0, 1, 2]),
                barrier,
                random.randrange(1, 60 if barrier else 40),
                random.choice([0.5, 4.0, 9.0, 15.0, 40.0, 130.0]),
            )
            faults.append(fault)
            if fault.kind == "kill" and random.random() < 0.4:  # again, soon after it was started again
                for life in range(fault.life + 1, fault.life + random.choice([2, 2, 3])):
                    again = random.choice([0, 1, 2, 2, 2]), random.randrange(1, 30)
                    faults.append(fault._replace(life=life, barrier=again[0], operation=again[1]))
        return faults

    def run(self) -> None:
        """Runs the job until all processes have ended for good."""
        scheduler = self.scheduler
        scheduler.say(
            f"{self.processes} processes, {'launched' if self.is_launched else 'other supervisor'}, "
            f"hosts {[each.host for each in self.settings]}{', auto plan' * self.has_auto_plan}"
        )
        if self.launcher is not None:
            scheduler.spawn(self.launcher, self.launcher.run)
        else:
            for process in range(self.live):
                self._start_after(process, 0.3 * scheduler.random.random())
            for process in range(self.live, self.processes):
                self._struck[process] = 0.0
                scheduler.spawn(Owner(), lambda process=process: self._register_absent(process))
            for process, seconds in self._joins.items():
                self._start_after(process, seconds)
            scheduler.spawn(self._supervisor, self._supervise)
        scheduler.run(LONGEST_S, self._is_over)
        if not self._is_over():
            self.wrong.append(f"starts {', '.join(map(str, self._alive()))} hang")
        elif not self._has_finished and not self.is_failing:
            self.wrong.append("no process has finished")
        for owner in [*self.starts, self._supervisor]:
            scheduler.end(owner)
        self._check_at_end()

    def latency(self) -> float:
        """Seconds that a message takes."""
        random, now = self.scheduler.random, self.scheduler.now
        if self._slow_from < now < self._slow_until:
            return random.uniform(0.02, 0.5)
        return random.expovariate(1 / self._mean_s)

    def _alive(self) -> list[Start]:
        return [each for each in self.starts if not each.is_dead]

    def _is_over(self) -> bool:
        if self.launcher is not None:
            return self.launcher.is_over and all(each.status is not None for each in self.launcher.system.processes)
        return not self._alive() and not self._pending and not self._ended

    # The program.

    def _program(self, start: Start) -> None:
        try:
            self._train(start)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except GreenletExit:
            raise
        except Exception as error:
            start.say(f"fails: {type(error).__name__}: {str(error).splitlines()[0]}")
            start.sys.last_value = error
            status = 1
        if status == 0:
            self._has_finished = True
        while start.at_exit:
            start.at_exit.pop()()
        start.client.shutdown()
        self.end(start, status)

    def _train(self, start: Start) -> None:
        modules, scheduler = start.modules, self.scheduler
        scheduler.sleep(scheduler.random.uniform(0.2, 1.0))
        start.state.client, start.state.coordinator_address = start.client, "coordinator:1"
        start.client.connect()
        scheduler.spawn(start, lambda: self._send_heartbeats(start))
        members = modules[_MEMBERS]
        utils = modules["jax.experimental.multihost_utils"]
        utils._live_devices = modules.rebound(_live_devices, utils)
        enter_block = modules.rebound(_LiveDevices.__call__.__wrapped__, utils)
        live_devices = SimpleNamespace(devices=None)
        modules["jaxcomm.distributed.connect.connector"].connect_once = start.connect_once
        self._check(start, members)
        members.before_client()
        self._make_client(start)
        self._timed(start, "join", lambda: self._init(start))
        block = contextmanager(enter_block)
        step, x = 0, np.array([_state(0)], np.int64)
        while step < BLOCKS * BLOCK:
            try:
                with block(live_devices, modules["jax"].devices()) as devices, errors.translated():
                    step, found = modules["jaxcomm.elastic"].catch_up(step, {"x": x})
                    x = now = found["x"]
                    processes = [device.process_index for device in devices]
                    for number in range(step, step + BLOCK):
                        now = self._step(start, number, now, processes)
            except (ProcessFailureError, DeadlineError) as error:
                start.say(f"block at step {step}: {str(error.__cause__ or error).splitlines()[0]}")
            else:
                step, x = step + BLOCK, now
        if x[0] != _state(step):
            self.wrong.append(f"{start} ends with a wrong state")

    def _init(self, start: Start) -> None:
        """As `jaxcomm.init`."""
        rejoins = start.modules[_MEMBERS].join() is None
        if self.has_auto_plan:
            running = start.modules["jaxcomm.auto_plan.running"]
            running.follow(None)
            if not rejoins:
                running.begin(None)

    def _step(self, start: Start, number: int, x: np.ndarray, processes: list[int]) -> np.ndarray:
        if self._has_finished and number == 0:
            self.wrong.append(f"{start} trains from the beginning, though the job has finished")
        self.scheduler.sleep(self.scheduler.random.uniform(0.005, 0.02))
        membership = start.modules[_MEMBERS].connected()
        core: Core = membership.core
        core.launches += 1
        found = core.exchange(core.launches, f"psum #{core.launches}", processes, np.array([number, x[0]]))
        if any((each != [number, _state(number)]).any() for each in found.values()):
            self.wrong.append(f"{start}: step {number} sums {found}, not {_state(number)}")
        return np.array([_state(number + 1)], np.int64)

    def _make_client(self, start: Start) -> None:
        """As JAX exchanges the devices of the processes when it makes its CPU client."""
        client = start.client
        with suppress(jax.errors.JaxRuntimeError):
            client.key_value_set(f"cpu:local_topology/cpu/{start.process}", "")
        if start.process == 0:
            for process in range(self.processes):
                client.blocking_key_value_get(f"cpu:local_topology/cpu/{process}", 120_000)
            client.key_value_set("cpu:global_topology/cpu", "")
        client.blocking_key_value_get("cpu:global_topology/cpu", 300_000)

    def new_client(self, process: int) -> Client:
        """A client that registers for a process, in another one than a start of it."""

        def request(name: str, run: Callable[[], Any]) -> Any:
            self.scheduler.sleep(self.latency())
            return run()

        return Client(self.service, process, self.scheduler.random.getrandbits(62) + 1, request)

    def _register_absent(self, process: int) -> None:
        """As `coordination.register_absent`."""

        client = self.new_client(process)
        with suppress(jax.errors.JaxRuntimeError):
            client.connect()
            client.key_value_set(*entry_of_ended(process))
            client.key_value_set(f"cpu:local_topology/cpu/{process}", "")
            client.blocking_key_value_get("cpu:global_topology/cpu", 300_000)
            if client.get_live_nodes([process]) == {process: client.incarnation}:
                self._costs += any(each.process == process for each in self.starts)  # it may have registered since
                client.shutdown()

    def _send_heartbeats(self, start: Start) -> None:
        """Ends the start as JAX does if the service does not count it as live any more, or cannot be reached."""
        seconds = self.service.heartbeat_timeout_s / 2
        while True:
            self.scheduler.sleep(seconds)
            began = self.scheduler.now
            try:
                start.client.heartbeat()
            except jax.errors.JaxRuntimeError as error:
                self.scheduler.sleep(1.0)
                start.say(f"JAX terminates it: {error}")
                start.exit(-6)
            if self.scheduler.now - began > seconds:
                start.say("JAX terminates it: heartbeats do not reach the service")
                start.exit(-6)

    # The supervisor.

    def start(self, process: int) -> Start:
        """Starts the program in a process."""
        made = Start(self, process, len(self.starts))
        self.starts.append(made)
        made.say("starts")
        self.scheduler.spawn(made, lambda: self._program(made))
        return made

    def end(self, start: Start, status: int) -> None:
        """A start of a process has ended."""
        if start.is_dead:
            return
        start.status = status
        start.say(f"ends with status {status}")
        self._struck[start.process] = self.scheduler.now
        self.scheduler.end(start)
        for core in start.cores:
            if not core.is_closed:
                core.tell_peers(has_left=False)
        if self.launcher is not None:
            self.launcher.has_ended(self.launcher.process_of(start), status)
        else:
            self._ended.append((start.process, status))
            self.scheduler.notify(self._woken)

    def _start_after(self, process: int, seconds: float) -> None:
        self._pending += 1

        def start() -> None:
            self._pending -= 1
            self.start(process)

        self.scheduler.at(self.scheduler.now + seconds, start)

    def _supervise(self) -> None:
        """Another supervisor than `jaxcomm launch`: it starts each process that has failed again, some time later."""
        while True:
            while not self._ended:
                self.scheduler.wait(self._woken)
            process, status = self._ended.popleft()
            if status != 0 and all(each.process != process for each in self._alive()):
                self._start_after(process, self.scheduler.random.uniform(0.5, 10.0))

    # Faults.

    def before_operation(self, start: Start, name: str) -> None:
        """Strikes with the faults that are due. The present task is one of the start's."""
        life = sum(each.process == start.process for each in self.starts[: start.number])
        for fault in [*self._to_strike]:
            if (fault.process, fault.life) == (start.process, life) and (fault.barrier, fault.operation) <= (
                start.barriers,
                start.operations_since_barrier,
            ):
                self._to_strike.remove(fault)
                start.say(f"FAULT {fault.kind} before {name}")
                self._strike(start, fault)

    def _strike(self, start: Start, fault: Fault) -> None:
        now = self.scheduler.now
        others = [each for each in self._alive() if each is not start]
        victims = {"kill": [start], "kill the others": others, "kill all": [*others, start]}.get(fault.kind, [])
        self._struck[start.process] = now
        self._costs += len(victims)
        for each in victims:
            self._struck[each.process] = now
            self.scheduler.at(now, lambda each=each: self.end(each, -9))
        if victims:
            self.scheduler.sleep(0.0)
        elif fault.kind == "stop":
            start.stopped_until = now + fault.seconds
            is_awaited = f"cpu:local_topology/cpu/{start.process}" not in self.service.values
            self._costs += 1 + (is_awaited and fault.seconds > 120.0)  # process 0, too, which waits for the devices
            if self.launcher is not None:
                self.launcher.stop(start, fault.seconds)
            self.scheduler.sleep(0.0)
        elif fault.kind == "partition":
            start.partitioned_until = now + fault.seconds
            self._costs += 2  # process 0, too, which waits two minutes for the devices of all
        elif fault.kind == "preempt":
            self._costs += 1
            self.terminate(start)
            self.scheduler.sleep(0.0)
        elif fault.kind == "twin":
            self._costs += 2  # the end of one may count for the other
            self._start_after(start.process, 0.0)

    def terminate(self, start: Start) -> None:
        """A process receives SIGTERM. A stopped process acts on it once it runs again."""
        if start.stopped_until > self.scheduler.now:
            self.scheduler.at(start.stopped_until, lambda: start.is_dead or self.terminate(start))
        elif (handler := start.handlers.get(15)) is not None:
            handler(15, None)
        else:
            self.scheduler.at(self.scheduler.now, lambda: self.end(start, -15))

    # Invariants.

    def check_culprit(self, start: Start, text: str) -> None:
        """An error names only processes that a fault has struck, or that have ended, of late."""
        named = re.findall(
            r"process(?:es)? (\d+(?:, \d+)*) (?:has|have|could)|of process (\d+),|connected: process (\d+) at ", text
        )
        if "could not be connected, and try again.\n" in text:  # these may themselves be what a fault has hindered
            return
        for process in map(int, "".join(named[-1]).split(", ")) if named else ():  # the last ones are the cause
            if self.scheduler.now - self._struck.get(process, -1e9) > 400.0:
                self.wrong.append(f"{start} names process {process}, which no fault has struck: {text}")

    def leave_generation(self, process: int) -> None:
        """A process closes its connections, which its peers may name as a cause."""
        self._struck[process] = self.scheduler.now

    def _timed(self, start: Start, name: str, call: Callable[[], Any]) -> Any:
        began = self.scheduler.now
        try:
            return call()
        finally:
            if not start.is_dead:
                took = self.scheduler.now - began
                self.longest[name] = max(self.longest.get(name, 0.0), took)

    def _check(self, start: Start, members: Any) -> None:
        """Checks each change of generations of a start."""
        advance, store = members.advance, start.modules[_STORE]

        def checked(entry: Any, live: dict[int, int]) -> bool:
            connected: bool = self._timed(start, "advance", lambda: advance(entry, live))
            if connected:
                found = members._connected.outcome.incarnations
                name = store.generation()
                if found != live:
                    self.wrong.append(f"{start} is in generation {name} of {found}, but {live} are live")
                if self._generations.setdefault(name, found) != found:
                    self.wrong.append(f"{start} is in generation {name} of {found}, others {self._generations[name]}")
                if found[start.process] != start.incarnation:
                    self.wrong.append(f"{start} is no member of its generation")
            return connected

        members.advance = checked
        before: list[str] = []

        def after_change(membership: Any) -> None:
            self._changes[start, store.generation()] += 1
            if self._changes[start, store.generation()] > 1 or not before:
                self.wrong.append(f"{start}: hooks of generation {store.generation()} did not run once")
            before.clear()

        members.on_change(after_change, lambda: before.append(""))

    def _check_at_end(self) -> None:
        names = {each.split("/")[1] for each in self.service.values if re.match("jaxcomm/[0-9a-f]{16}/", each)}
        # A process that was cut off or stopped may still wait in a generation that the others have left behind.
        was_cut_off = any(
            fault.kind == "partition" or (fault.kind == "stop" and fault.seconds > self.service.heartbeat_timeout_s)
            for fault in self.faults
        )
        if len(names) > 1 and not self.is_failing and not was_cut_off:
            self.wrong.append(f"the store has keys of {len(names)} generations")
        self._check_times()
        lives = len(self.starts) - self.live - len(self._joins)
        if lives > self._costs:
            self.wrong.append(f"{lives} starts were replaced, but faults struck only {self._costs}")

    def _check_times(self) -> None:
        """No process waits longer for a dead process than until its end is reported, or the time limits pass."""
        is_calm = self._slow_from > LONGEST_S and not {"stop", "partition"} & {each.kind for each in self.faults}
        restarts = len(self.starts) - self.live  # another supervisor may take ten seconds for each
        most = {"advance": 1.0, "end": 20.0} if self.is_launched else {"advance": 21.0, "end": 70.0 + 10.0 * restarts}
        if not is_calm:
            most = {"end": 400.0}
        self.longest["end"] = max(time for time, _ in self.scheduler.trace)
        for name, seconds in most.items():
            if self.longest.get(name, 0.0) > seconds:
                self.wrong.append(f"{name} took {self.longest[name]:.1f} s")


def _state(step: int) -> int:
    return (step * 2654435761 + 12345) % (1 << 31)
