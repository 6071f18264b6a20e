"""Starts and ends plan="auto" in this process."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import jax

from jaxcomm import ffi, jax_compat, statistics
from jaxcomm.auto_plan import links
from jaxcomm.auto_plan.auto_plan import AutoPlan
from jaxcomm.distributed import store
from jaxcomm.distributed.connect import members
from jaxcomm.distributed.connect.membership import Membership
from jaxcomm.errors import DeadlineError, JaxcommError, is_installed, missing_extra
from jaxcomm.log import say

# Measurements in the run are numbered from _MEASUREMENTS on. For each process of the job that plan="auto" leaves out,
# _OF_FEWER is added, so that a run with fewer processes uses new numbers.
_MEASUREMENTS: Final = 1 << 20
_OF_FEWER: Final = 1 << 24
_NO_PLANNER: Final = "no planner"


class _Running(NamedTuple):
    """The job's generation, the processes of plan="auto", and the thread that follows the run."""

    generation: tuple[Any, str]  # the store's client and the generation's name
    processes: tuple[int, ...]
    auto_plan: AutoPlan | None  # None: there is no planner


_running: _Running | None = None
_follows = False  # whether `begin` is called again in each new generation
_mesh: jax.sharding.Mesh | None = None  # the mesh that was passed to `follow`


def follow(mesh: jax.sharding.Mesh | None) -> None:
    """Calls `begin(mesh)` again in each later generation, until `end`."""
    global _follows, _mesh
    _follows, _mesh = True, mesh
    members.on_change(_begin_anew, _stop)


def _begin_anew(membership: Membership) -> None:
    if not _follows or len(membership.incarnations) < 2:
        return
    try:
        _begin([device for device in _devices(_mesh) if device.process_index in membership.incarnations])
    except Exception as error:  # the run goes on without plans
        say(f"plan='auto': sums run without a plan: {error}")


def _devices(mesh: jax.sharding.Mesh | None) -> list[jax.Device]:
    return sorted(jax.devices("cpu") if mesh is None else mesh.devices.flat, key=lambda device: device.id)


def begin(mesh: jax.sharding.Mesh | None) -> None:
    """Starts or continues to follow the run. All processes call this function after they have been connected.

    The first process plans. If it has no OR-Tools, one line in its log says so, and sums run without a plan.

    Args:
      mesh: the mesh of the processes whose calls are planned; None: all members of the job.

    Raises:
      JaxcommError: a process does not call this function or has ended, or the links cannot be measured.
    """
    devices = _devices(mesh)
    if mesh is None:
        members_now = members.connected().incarnations
        devices = [device for device in devices if device.process_index in members_now]
    try:
        _begin(devices)
    except JaxcommError as error:
        is_without_process = ffi.gone() or isinstance(error, DeadlineError)
        if not (jax_compat.is_recoverable() and is_without_process):
            raise
        say(f"plan='auto': sums run without a plan until the next live_devices: {error}")


def _begin(devices: list[jax.Device]) -> None:
    global _running
    process, processes = jax.process_index(), tuple(sorted({device.process_index for device in devices}))
    if process not in processes or len(processes) < 2:
        raise JaxcommError(
            "plan='auto' needs several processes, this one among them; the mesh has devices of "
            f"{', '.join(map(str, processes))}, and this is process {process}.\n"
            "  Cure: jaxcomm.init(mesh, plan='auto') with a mesh of this and other processes."
        )
    generation = store.client(), store.generation()
    if _running is not None and _running[:2] == (generation, processes):
        if _running.auto_plan is not None:
            _running.auto_plan.go_on()
        return
    _stop()
    missing = jax.process_count() - len(processes)
    name = f"auto-{hashlib.sha256(str(processes).encode()).hexdigest()[:16]}" if missing else "auto"
    store.publish(f"{name}/begun/{process}", "" if is_installed("ortools") else _NO_PLANNER)
    begun = [
        store.lookup(f"{name}/begun/{each}", f"process {each} has not called jaxcomm.init(plan='auto')", each)
        for each in processes
    ]
    if begun[0] == _NO_PLANNER:
        _running = _Running(generation, processes, None)
        if process == processes[0]:
            message = missing_extra("ortools", "sums run without a plan: planning")
            statistics.record_event(message, "no plan")
            say(f"plan='auto': {message}")
        return
    found = links.measure(devices)
    if process == processes[0]:
        message = f"the links were measured, in {found.took_s:.1f} s; plans follow as the run shows who is late."
        statistics.record_event(message, "begun")
        say(f"plan='auto': {message}")

    def measure_again(number: int) -> links.MeasuredLinks:
        return links.measure(devices, _MEASUREMENTS + missing * _OF_FEWER + number)

    followed = AutoPlan(found.links, process, processes, len(devices), name, measure_again)
    _running = _Running(generation, processes, followed)


def end() -> None:
    """Stops following the run until `begin`; the run keeps its plan."""
    global _follows
    _follows = False
    _stop()


def _stop() -> None:
    if _running is not None and _running.auto_plan is not None:
        _running.auto_plan.close()
