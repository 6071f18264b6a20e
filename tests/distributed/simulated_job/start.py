"""One start of a simulated process: jaxcomm's code over stand-ins for JAX, the operating system and the C++ core."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import jax
import numpy as np
from greenlet import GreenletExit
from jax.experimental import multihost_utils

from jaxcomm import errors
from jaxcomm.distributed.connect import listener, settings
from jaxcomm.distributed.connect.addresses import Route
from jaxcomm.distributed.connect.handshake import Refused
from jaxcomm.distributed.connect.job_core import StepsRunning
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.rails import lowest_latency_rail, rail_ends
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import DeadlineError, JaxcommError
from tests.distributed.simulated_job.modules import Modules, Overlay
from tests.distributed.simulated_job.scheduler import Owner, Waiters
from tests.distributed.simulated_job.service import Client

if TYPE_CHECKING:
    from tests.distributed.simulated_job.job import Job

DEADLINE_S: Final = 60.0
_CONNECT: Final = "jaxcomm.distributed.connect"
ANEW: Final = frozenset(
    (
        "jaxcomm.auto_plan.running",
        "jaxcomm.distributed.calls",
        *(f"{_CONNECT}.{name}" for name in ("agreed_route", "connecting", "connector", "generations", "introductions")),
        *(f"{_CONNECT}.{name}" for name in ("members", "records", "secret", "stages")),
        "jaxcomm.distributed.rails.connections",
        "jaxcomm.distributed.rails.outages",
        "jaxcomm.distributed.store",
        "jaxcomm.elastic",
        "jaxcomm.jax_compat.job",
    )
)


class Device(NamedTuple):
    """A device of a process."""

    id: int
    process_index: int
    platform: str = "cpu"


class Start(Owner):
    """A start of a process: its state in the simulated world, and its modules."""

    def __init__(self, job: Job, process: int, number: int) -> None:
        self.job, self.process, self.number = job, process, number
        self.pid = 1000 + number
        self.status: int | None = None
        self.incarnation = job.scheduler.random.getrandbits(62) + 1
        self.operations = self.barriers = self.operations_since_barrier = 0
        self.partitioned_until = 0.0
        self.cores: list[Core] = []
        self.sockets: list[Socket] = []
        self.handlers: dict[int, Any] = {}
        self.at_exit: list[Callable[[], object]] = []
        self.client = Client(job.service, process, self.incarnation, self.request)
        self.sys = SimpleNamespace(exception=sys.exception, stderr=SimpleNamespace(flush=lambda: None))
        self.modules = Modules(self._stand_ins(), ANEW, print=lambda *words, **_: self.say(" ".join(map(str, words))))

    def __str__(self) -> str:
        return f"{self.process}{'abcdefghijklmnopqrstuvwxyz'[self.number % 26]}"

    def say(self, text: str) -> None:
        self.job.scheduler.say(f"{self}: {text}")

    def step(self, name: str) -> None:
        """An operation at which other processes may run and faults may strike."""
        if self.is_dead:
            raise GreenletExit
        self.operations += 1
        self.operations_since_barrier += 1
        self.job.before_operation(self, name)
        if self.is_dead:
            raise GreenletExit

    def sleep(self, seconds: float) -> None:
        self.step("sleep")
        self.job.scheduler.sleep(seconds)

    def request(self, name: str, run: Callable[[], Any]) -> Any:
        """Carries a request to the coordination service and the reply back."""
        self.step(name)
        self._travel()
        try:
            return run()
        finally:
            self._travel()
            if name.startswith("live nodes"):
                self.barriers, self.operations_since_barrier = self.barriers + 1, 0

    def _travel(self) -> None:
        scheduler = self.job.scheduler
        scheduler.sleep(self.job.latency())
        while self.partitioned_until > scheduler.now:
            scheduler.sleep(self.partitioned_until - scheduler.now)

    def exit(self, status: int) -> NoReturn:
        """Ends this start at once, in one of its own tasks."""
        self.job.end(self, status)
        raise GreenletExit

    def core(self) -> Core | None:
        """The core of the present generation."""
        return self.cores[-1] if self.cores and not self.cores[-1].is_closed else None

    def _stand_ins(self) -> dict[str, object]:
        job, scheduler = self.job, self.job.scheduler
        clock = SimpleNamespace(
            monotonic=lambda: scheduler.now + 1000.0 * self.number, sleep=self.sleep, perf_counter=time.perf_counter
        )
        devices = [Device(each, each) for each in range(job.processes)]
        self.state = SimpleNamespace(
            client=None, process_id=self.process, num_processes=job.processes, coordinator_address=None
        )
        fake_jax = Overlay(
            jax,
            process_index=lambda: self.process,
            process_count=lambda: job.processes,
            config=SimpleNamespace(jax_enable_recoverability=True),
            devices=lambda *_: devices,
            local_devices=lambda **_: [devices[self.process]],
        )
        utils = ModuleType("multihost_utils")
        distributed = SimpleNamespace(global_state=self.state)
        utils.__dict__.update(
            vars(multihost_utils)
            | {"xla_bridge": SimpleNamespace(process_index=lambda: self.process), "distributed": distributed}
        )
        random = scheduler.random
        thread = object()
        return {
            "atexit": SimpleNamespace(register=self.at_exit.append, unregister=lambda _: None),
            "jax": fake_jax,
            "jax._src.distributed": distributed,
            "jax.experimental.multihost_utils": utils,
            "jaxcomm.auto_plan.auto_plan": SimpleNamespace(AutoPlan=lambda *_: _AutoPlan()),
            "jaxcomm.auto_plan.links": SimpleNamespace(measure=self._measure),
            "jaxcomm.distributed.forks": SimpleNamespace(run_at_exit=self._run_at_exit),
            f"{_CONNECT}.addresses": SimpleNamespace(
                Route=Route, bound_socket=None, listening_socket=self._bind, routes=self._routes, local_address=None
            ),
            f"{_CONNECT}.job_core": SimpleNamespace(JobCore=lambda **_: Core(self), StepsRunning=StepsRunning),
            f"{_CONNECT}.listener": SimpleNamespace(HANDSHAKE_S=listener.HANDSHAKE_S, Listener=self._listen),
            f"{_CONNECT}.settings": Overlay(settings, from_environment=lambda: job.settings[self.process]),
            "jaxcomm.distributed.rails.lowest_latency_rail": Overlay(lowest_latency_rail, round_trip_s=lambda _: None),
            "jaxcomm.distributed.rails.rail_ends": Overlay(rail_ends, own_rails=self._own_rails),
            "jaxcomm.errors": Overlay(errors, from_jax=_from_jax, is_installed=lambda _: True),
            "jaxcomm.ffi": SimpleNamespace(gone=self._gone, deadline=lambda: DEADLINE_S),
            "jaxcomm.ffi.arguments": SimpleNamespace(MessageRun=_MessageRun),
            "jaxcomm.ffi.cpu": SimpleNamespace(CPU=SimpleNamespace(failure=self._run)),
            "jaxcomm.jax_compat": _Lazy(lambda: self.modules["jaxcomm.jax_compat.job"]),
            "jaxcomm.jax_compat.contexts": SimpleNamespace(hosts=SimpleNamespace(set_global=lambda _: None)),
            "jaxcomm.log": SimpleNamespace(say=self._log, say_once=self._log),
            "jaxcomm.statistics": SimpleNamespace(
                record_generation=self._record_generation, record_event=lambda *_: None
            ),
            "os": Overlay(os, getpid=lambda: self.pid, _exit=self.exit, open=self._open, close=lambda _: None),
            "secrets": SimpleNamespace(
                token_hex=lambda count: f"{random.getrandbits(8 * count):x}", token_bytes=random.randbytes
            ),
            "signal": SimpleNamespace(
                SIGTERM=15, SIG_DFL=0, getsignal=lambda n: self.handlers.get(n, 0), signal=self.handlers.__setitem__
            ),
            "sys": self.sys,
            "threading": SimpleNamespace(
                Lock=_Lock, Event=_Event, current_thread=lambda: thread, main_thread=lambda: thread
            ),
            "time": clock,
            "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{random.getrandbits(128):x}")),
        }

    def _run_at_exit(self, function: Callable[[], object]) -> Callable[[], object]:
        self.at_exit.append(function)
        return function

    def _log(self, text: str) -> None:
        self.say(f"logs: {text.splitlines()[0]}")
        self.job.check_culprit(self, text)

    def _record_generation(self, before: Mapping[int, int], live: Mapping[int, int], took_s: float, error: str) -> None:
        self.say(f"generation of {sorted(live)} {'failed' if error else 'connected'} after {took_s:.2f} s")

    def _measure(self, devices: Sequence[Device], number: int = 0) -> Any:
        """Takes a call of all members, as measuring links does."""
        values = np.zeros(len(devices) * 8, np.uint8)
        ranks = [(each.process_index, each.id) for each in devices]
        self.modules["jaxcomm.distributed.calls"].run("a measurement of links", number, "all_reduce", ranks, values)
        return SimpleNamespace(links={}, took_s=0.0)

    def _gone(self) -> list[dict[str, Any]]:
        core = self.core()
        return [] if core is None else [{"process": each, **record} for each, record in core.gone.items()]

    def _open(self, path: str, flags: int) -> int:
        self.step("open")
        _, _, pid, _, number = path.split("/")
        for start in self.job.starts:
            if str(start.pid) == pid and not start.is_dead:
                for core in start.cores:
                    if str(core.number) == number and not core.is_closed:
                        self.job.files[core.number] = core
                        return core.number
        raise FileNotFoundError(2, "No such file or directory")

    def _run(self, function: str, made: _MessageRun, seconds: object) -> str | None:
        """Runs a list of messages, which is a sum or a copy of the first rank's values."""
        core = self.core()
        assert function == "job_run" and core is not None
        try:
            found = core.exchange(made.number, made.call, [int(each) for each in made.processes], made.values.copy())
        except JaxcommError as error:
            return str(error)
        rows = [found[int(each)] for each in made.processes]
        made.values[:] = rows[0] if made.messages.startswith("broadcast") else np.sum(rows, axis=0, dtype=np.uint8)
        return None

    # Connections between hosts.

    def _routes(self, coordinator: str) -> list[Route]:
        return [Route(self._address(), coordinator, False)]

    def _address(self) -> str:
        return f"10.0.0.{1 + self.process}"

    def _own_rails(self, *_: object) -> list[RailEnd]:
        return [RailEnd("", "", self._address(), 0, 0, "")]

    def _bind(self, address: str, interface: str) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: None)

    def _listen(self, bound: object, key: bytes, *, process: int, processes: int, rail: int) -> Listener:
        made = Listener(self, key)
        self.job.listeners[made.address] = made
        return made

    def connect_once(self, side: Any, end: RailEnd, interface: str, deadline: float) -> Socket:
        """Stands in for `connector.connect_once`."""
        self.step(f"connect to {end.address}")
        self.job.scheduler.sleep(self.job.latency())
        found = self.job.listeners.get((end.address, end.port))
        if found is None or found.start.is_dead or found.is_closed:
            raise ConnectionRefusedError(111, "Connection refused")
        if found.start.stopped_until > self.job.scheduler.now:
            self.sleep(max(deadline - self.modules["time"].monotonic(), 0.001))
            raise TimeoutError("timed out")
        if found.key != side._key:
            found.strangers += 1
            raise Refused("its challenge is not signed with this job's key")
        own, theirs = Socket(self, found.start), Socket(found.start, self)
        found.accepted[self.process] = theirs
        return own


class Listener:
    """Stands in for `listener.Listener`."""

    def __init__(self, start: Start, key: bytes) -> None:
        self.start, self.key, self.strangers, self.is_closed = start, key, 0, False
        self.accepted: dict[int, Socket] = {}
        self.address = start._address(), 1024 + len(start.job.listeners)

    def close(self) -> dict[int, Socket]:
        self.is_closed = True
        return self.accepted

    def abandon(self) -> None:
        self.is_closed = True


class Socket:
    """One end of a connection with the peer's core of the generation that is being connected."""

    def __init__(self, start: Start, peer: Start) -> None:
        self.start, self.peer = start, peer.cores[-1]

    def close(self) -> None:
        """Nothing waits for a connection that no core has."""

    def detach(self) -> int:
        self.start.sockets.append(self)
        return len(self.start.sockets) - 1


class Core:
    """Stands in for the C++ core in one generation: it exchanges values, and notices that peers end."""

    def __init__(self, start: Start) -> None:
        start.step("open core")
        self.owner = start
        self.number = next(start.job.numbers)
        self.peers: dict[int, Core] = {}
        self.watchers: list[Core] = []
        self.gone: dict[int, dict[str, Any]] = {}
        self.launches = 0
        self.is_started = self.is_closed = False
        self._inbox: dict[tuple[int, int], np.ndarray] = {}
        self._changed: Waiters = []
        start.cores.append(self)

    def seals_by_aes(self) -> bool:
        return False

    def shm_file(self) -> tuple[int, int]:
        return self.number, self.number

    def add_shm(self, process: int, fd: int, number: int) -> None:
        if fd != number:
            raise JaxcommError(f"the file of process {process} has another number")
        self._add(process, self.owner.job.files[fd])

    def add_tcp(self, process: int, rail: int, fd: int, keys: CipherKeys | None) -> None:
        self._add(process, self.owner.sockets[fd].peer)

    def _add(self, process: int, peer: Core) -> None:
        self.peers[process] = peer
        peer.watchers.append(self)
        if peer.is_closed or peer.owner.is_dead:
            self.lose(process, has_left=peer.is_closed)

    def open_rails(self, rails: list[tuple[str, str]]) -> None:
        """All rails are one."""

    def start(self, hosts: Sequence[int], host_names: Sequence[str], *, has_processor_each: bool) -> None:
        self.owner.step("start core")
        self.is_started = True
        self.owner.at_exit.append(self.close)

    def close(self, *, for_change: bool = False) -> None:
        self.owner.step("close core")
        if not self.is_closed:
            self.is_closed = True
            self.owner.job.leave_generation(self.owner.process)
            self.tell_peers(has_left=True)

    def tell_peers(self, *, has_left: bool) -> None:
        """The peers notice that this core ends."""
        scheduler = self.owner.job.scheduler
        for each in self.watchers:
            delay = 0.005 * scheduler.random.random()
            scheduler.at(scheduler.now + delay, lambda each=each: each.lose(self.owner.process, has_left=has_left))

    def lose(self, process: int, *, has_left: bool) -> None:
        self.gone.setdefault(
            process,
            {"why": f"process {process} has {'left' if has_left else 'been killed or has crashed'}"}
            | {"has_left": has_left},
        )
        self.owner.job.scheduler.notify(self._changed)

    def exchange(self, number: int, call: str, processes: Sequence[int], values: np.ndarray) -> dict[int, np.ndarray]:
        """Sends values to the others and waits for theirs. Returns all, by process."""
        self.owner.step(f"call {call}")
        scheduler, own = self.owner.job.scheduler, self.owner.process
        others = [each for each in processes if each != own]
        for each in others:
            if each in self.peers:
                delay = self.owner.job.latency()
                scheduler.at(scheduler.now + delay, lambda each=each: self.peers[each].take(number, own, values))
        until = scheduler.now + DEADLINE_S
        while missing := [each for each in others if (number, each) not in self._inbox]:
            if ended := [each for each in missing if each in self.gone or each not in self.peers]:
                why = self.gone.get(ended[0], {"why": f"process {ended[0]} is no member"})["why"]
                raise JaxcommError(f"{call}: rank {processes.index(ended[0])} is gone: {why}.\n  Cure: start it again.")
            if not scheduler.wait(self._changed, until - scheduler.now) and scheduler.now >= until:
                self.owner.job.check_culprit(self.owner, f"process {missing[0]} has not arrived")
                raise DeadlineError(f"{call}: rank {processes.index(missing[0])} has not arrived after {DEADLINE_S} s")
        self.owner.step(f"end of {call}")
        return {own: values} | {each: self._inbox.pop((number, each)) for each in others}

    def take(self, number: int, process: int, values: np.ndarray) -> None:
        """Values of a peer have arrived."""
        self._inbox[number, process] = values
        self.owner.job.scheduler.notify(self._changed)

    def lost_rails(self) -> list[tuple[int, int, int]]:
        return []


@dataclasses.dataclass
class _MessageRun:
    number: int
    call: str
    messages: str
    processes: Any
    devices: Any
    ranks: int
    values: np.ndarray
    row_bytes: int


class _AutoPlan:
    def close(self) -> None:
        """Nothing runs."""

    def go_on(self) -> None:
        """Nothing runs."""


class _Lock:
    """A lock of a process that has one thread."""

    def __enter__(self) -> None:
        """Never waits."""

    def __exit__(self, *_: object) -> None:
        """Never waits."""


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class _Lazy:
    """The attributes of a module that is loaded at the first use."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


def _from_jax(error: BaseException) -> JaxcommError:
    text = str(error).removeprefix(": jaxcomm: ")
    return DeadlineError(text) if "has not arrived after" in text else JaxcommError(text)
