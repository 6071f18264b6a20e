"""The members of this job's current generation, and the connections of this process with them.

The processes first connect after `jax.distributed.initialize`. They connect anew, as the next generation, when JAX's
`live_devices` returns other processes or processes that were started again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import jax

from jaxcomm import ffi, jax_compat, statistics
from jaxcomm.distributed import forks, store
from jaxcomm.distributed.connect import generations, settings, stages
from jaxcomm.distributed.connect.connecting import connect_as
from jaxcomm.distributed.connect.generations import AgreedGeneration, BarrierEntry, Incarnations
from jaxcomm.distributed.connect.job_core import JobCore, StepsRunning
from jaxcomm.distributed.connect.membership import Membership, MessageCore
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails.named_rails import NamedRail
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRails
from jaxcomm.jax_compat.contexts import hosts
from jaxcomm.log import say, say_once

_ANEW_S: Final = 20.0  # time limit for connecting anew; short, because all members arrive at once


class _Wanted(NamedTuple):
    """The settings with which this process connects."""

    settings: Settings
    planned: PlanRails | None = None  # the rails of a plan


class _Connected(NamedTuple):
    """The state of this process in one job. `outcome` is None while the process can join only in `live_devices`."""

    client: Any  # the store's client
    wanted: _Wanted
    outcome: Membership | Exception | None
    members: Incarnations  # the latest members; empty before this process has connected


_lock = threading.Lock()
_connected: _Connected | None = None
_core: MessageCore | None = None  # the latest generation's core, even if connecting failed
_generation = 0
_is_preempted = False  # whether this process leaves before the training has ended
_barriers = 0
_host_names: dict[int, str] = {}  # by process: the latest known host, also of processes that have ended
_on_change: list[tuple[Callable[[], None] | None, Callable[[Membership], None]]] = []


def connected(
    named: Sequence[NamedRail] = (),
    planned: PlanRails | None = None,
    planned_transport: str = "",
    *,
    new_core: Callable[[], MessageCore] = JobCore,
) -> Membership:
    """Returns this process's membership. The first call connects this process with every other process.

    All processes must call this. `jaxcomm.distributed.connect.settings` describes how processes are connected.

    Args:
      named: rails that replace the rails of the settings; () keeps the settings' rails.
      planned: the rails of a plan.
      planned_transport: the plan's transport, "tcp" or "udp", or "".
      new_core: creates the core. The core has started when this function returns.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized; or this process can only join the job in `live_devices`;
        or a process is missing or cannot be connected. After such a failure, no process is connected until
        `jax.distributed` is initialized anew or `live_devices` begins another generation.
    """
    membership = join(named, planned, planned_transport, new_core=new_core)
    if membership is None:
        assert _connected is not None
        if isinstance(_connected.outcome, Exception):
            raise _connected.outcome
        raise JaxcommError(
            f"process {jax.process_index()} is not connected yet; it connects in live_devices.\n"
            "  Cure: run collectives inside `with live_devices(jax.devices()) as devices:`, as the other processes do; "
            "or start all processes again."
        )
    return membership


def join(
    named: Sequence[NamedRail] = (),
    planned: PlanRails | None = None,
    planned_transport: str = "",
    *,
    new_core: Callable[[], MessageCore] = JobCore,
) -> Membership | None:
    """Connects like `connected`, but returns None if this process can join the job only later, in `live_devices`.

    This is so if this process was started again and has not rejoined yet, if the job began without some processes, or
    if connecting failed in a job with JAX's fault tolerance.
    """
    with _lock:
        client = store.client()
        if _connected is None or _connected.client is not client or _connected.outcome is None:
            _connect_first(client, tuple(named), planned, planned_transport, new_core)
        assert _connected is not None
        _, (chosen, followed), outcome, _ = _connected
    if outcome is None or _tries_again(outcome):
        return None
    if isinstance(outcome, Exception):
        raise outcome
    if named and tuple(named) != chosen.rails:
        raise JaxcommError(
            f"this process is already connected over {_words(chosen.rails) or 'detected rails'}; "
            f"it is too late for {_words(named)}.\n"
            "  Cure: call jaxcomm.init(rails=…) before the first collective, in all processes."
        )
    if planned and planned != followed and any(len(each[0].shares) > 1 for each in outcome.shares.values()):
        say_once(
            "the processes are already connected: the rails keep their shares, and the plan's shares are ignored. "
            "Call jaxcomm.init(plan=…) before the first collective."
        )
    protocols = sorted({*outcome.transports} - {"", "shm"})
    if planned_transport not in ("", chosen.planned_transport) and chosen.follows_plan and protocols:
        say_once(
            f"the processes are already connected: hosts keep using {' and '.join(protocols).upper()} instead of the "
            "plan's choice. Call jaxcomm.init(plan=…) before the first collective."
        )
    return outcome


def _connect_first(
    client: Any,
    named: tuple[NamedRail, ...],
    planned: PlanRails | None,
    planned_transport: str,
    new_core: Callable[[], MessageCore],
) -> None:
    """Connects all processes of the job, unless some are absent or were started again."""
    global _connected, _core, _generation
    follow_live_devices()
    _close()
    process, wanted = jax.process_index(), _Wanted(Settings())
    outcome: Membership | Exception | None = None
    try:
        chosen = settings.from_environment()
        wanted = _Wanted(chosen._replace(rails=named or chosen.rails, planned_transport=planned_transport), planned)
        why = f"process {process} was started again" if _was_started_before(process) else generations.why_begun()
        if why is not None:
            # Other processes may still wait for this process, or for an earlier start of it. The published error ends
            # their wait.
            stages.publish_failure(process, JaxcommError(why))
        else:
            _generation += 1
            _core, coordinator = new_core(), jax_compat.coordinator_address()
            outcome = connect_as(
                process, jax.process_count(), _core, wanted.settings, coordinator, _generation, planned
            )
    except Exception as error:
        stages.publish_failure(process, error)
        outcome = error
        if _tries_again(outcome):
            say(f"the processes could not be connected, and try again in live_devices: {error}")
    members = outcome.incarnations if isinstance(outcome, Membership) else {}
    _connected = _Connected(client, wanted, outcome, members)
    if isinstance(outcome, Membership):
        _host_names.clear()
        _host_names.update(outcome.host_names)


def _tries_again(outcome: Membership | Exception) -> bool:
    """Whether connecting has failed and `live_devices` will retry. It does not retry with invalid settings."""
    return isinstance(outcome, Exception) and _core is not None and jax_compat.is_recoverable()


def _was_started_before(process: int) -> bool:
    """Whether an earlier start of a process has connected in the job's first generation."""
    return store.find(f"record/{process}") is not None


def before_client() -> None:
    """Prepares this process before JAX makes its CPU client."""
    follow_live_devices()
    jax_compat.own_incarnation()
    jax_compat.forget_devices()


def on_change(after: Callable[[Membership], None], before: Callable[[], None] | None = None) -> None:
    """Registers a function to run after, and one to run before, each change of generation, in all members at once."""
    if (before, after) not in _on_change:
        _on_change.append((before, after))


@functools.cache
def follow_live_devices() -> None:
    """Makes `live_devices` begin the next generation whenever it returns processes that differ from the members."""
    jax_compat.follow_live_devices(lambda: enter(jax.process_index()), advance)


def leave(status: int) -> NoReturn:
    """Ends this process with an exit status. `live_devices` then skips its barrier, so other processes do not wait."""
    global _is_preempted
    _is_preempted = True
    raise SystemExit(status)


def enter(process: int) -> BarrierEntry:
    """Publishes that this process enters the barrier of `live_devices`."""
    _publish_end_at_exit()
    last = _last()
    members = last.outcome.incarnations if last is not None and isinstance(last.outcome, Membership) else {}
    # A live member may also have been recorded as gone, because the network between two hosts was silent.
    is_connected = members and not any(record["process"] in members for record in ffi.gone())
    return generations.enter(process, store.generation() if is_connected else None)


def advance(entry: BarrierEntry, live: Incarnations, *, new_core: Callable[[], MessageCore] | None = None) -> bool:
    """Connects the live processes anew unless they are the members already. All live processes call this at once.

    Args:
      entry: this process's entry into the barrier of `live_devices`.
      live: the result of the barrier.
      new_core: creates the core; None: the process's C++ core.

    Returns:
      Whether the live processes are connected. If not, calls fail, and the log says why.
    """
    global _connected, _barriers
    process, began = jax.process_index(), time.monotonic()
    if live.get(process) != entry.incarnation:
        # A newer start has replaced this process, or this process no longer counts as live. The next barrier must not
        # count this process. Until that barrier, the other processes must not wait for a newer start.
        generations.publish_end(process)
        why = "was started again elsewhere" if process in live else "does not count as live any more"
        print(f"jaxcomm: process {process} {why}; this start of it ends.", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    last, client = _last(), store.client()
    wanted = last.wanted if last is not None else _Wanted(settings.from_environment())
    before = last.members if last is not None else {}
    now = before
    timeout_s = min(wanted.settings.timeout_s, _ANEW_S)
    outcome: Membership | Exception
    try:
        agreed = generations.agree(process, live, before if entry.generation is not None else {}, entry)
        if agreed.name == entry.generation:
            _barriers += 1
            return True
        for before_change, _ in _on_change:
            if before_change is not None:
                before_change()
        with _lock:
            made = new_core or functools.partial(JobCore, same_job=True)
            outcome = _connect_anew(agreed, live, wanted, timeout_s, made)
            now = outcome.incarnations
            _trace_anew_if_moved(outcome)
            _connected = _Connected(client, wanted, outcome, now)
    except Exception as error:
        say(f"the live processes {', '.join(map(str, sorted(live)))} could not be connected: {error}")
        outcome = error
        with _lock:
            if not isinstance(error, StepsRunning):  # otherwise the next attempt waits for the steps again
                with contextlib.suppress(JaxcommError):  # some calls have not ended; the next attempt waits for these
                    _close(for_change=True)
            _connected = _Connected(client, wanted, outcome, now)
    _barriers = 0
    statistics.record_generation(before, live, time.monotonic() - began, str(outcome) * isinstance(outcome, Exception))
    if isinstance(outcome, Exception):
        return False
    for _, after_change in [*_on_change]:
        after_change(outcome)
    return True


def barriers() -> int:
    """Returns how often `live_devices` has returned the members of this generation. All members get the same number."""
    return _barriers


@functools.cache
def _publish_end_at_exit() -> None:
    """Publishes at exit that this process has finished. Processes that are started again later look this up."""
    forks.run_at_exit(_publish_end)


def _publish_end() -> None:
    failed = _is_preempted or hasattr(sys, "last_value")
    if not failed and jax_compat.spans_processes() and _last() is not None:
        with contextlib.suppress(Exception):  # the coordination service may have ended
            store.publish_ended()


def _connect_anew(
    agreed: AgreedGeneration,
    live: Incarnations,
    wanted: _Wanted,
    timeout_s: float,
    new_core: Callable[[], MessageCore],
) -> Membership:
    global _core, _generation
    _close(for_change=True)
    process = jax.process_index()
    store.begin(agreed.name, functools.partial(generations.require_current, live, agreed.nonces))
    _generation += 1
    try:
        _core, coordinator = new_core(), jax_compat.coordinator_address()
        chosen = wanted.settings._replace(timeout_s=timeout_s)
        made = connect_as(
            process, jax.process_count(), _core, chosen, coordinator, _generation, wanted.planned, sorted(live)
        )
    except Exception as error:
        stages.publish_failure(process, error)
        raise
    if process == min(live):
        store.remove_earlier()
    return made


def _trace_anew_if_moved(membership: Membership) -> None:
    """Makes JAX trace again if a process was started again on another host, because message lists depend on hosts."""
    names = {**_host_names, **membership.host_names}
    moved = _host_names and _first_on_hosts(names) != _first_on_hosts({**names, **_host_names})
    _host_names.update(names)
    if moved:
        hosts.set_global(_first_on_hosts(names))


def _first_on_hosts(names: dict[int, str]) -> tuple[int, ...]:
    """For each process, in ascending order, the first process on its host."""
    by_process = [names[process] for process in sorted(names)]
    return tuple(map(by_process.index, by_process))


def leave_last_job() -> None:
    """Leaves the job with which this process is connected, if `jax.distributed` has been shut down since.

    Raises:
      JaxcommError: a call between the job's processes has not ended.
    """
    with _lock:
        if _connected is not None and not (jax_compat.spans_processes() and _connected.client is store.client()):
            _close()


def _last() -> _Connected | None:
    """The state of this process in the current job."""
    return _connected if _connected is not None and _connected.client is store.client() else None


def _close(*, for_change: bool = False) -> None:
    global _connected, _core
    if _connected is not None and isinstance(_connected.outcome, Membership) and _connected.outcome.repair is not None:
        _connected.outcome.repair.close()
    _connected = None
    if _core is not None:
        _core.close(for_change=for_change)
        _core = None


def _words(named: Sequence[NamedRail]) -> str:
    return ", ".join(f"{rail.name}:{rail.rate}" if rail.rate else rail.name for rail in named)
