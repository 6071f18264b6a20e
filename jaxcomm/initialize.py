"""`jaxcomm.init`: the settings before a run's first collective, and the start of jaxcomm's threads and connections.

This module combines `collectives`, `distributed` and `auto_plan`. Only jaxcomm's `__init__` imports it.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax

from jaxcomm import ffi, jax_compat
from jaxcomm.collectives import active_plan
from jaxcomm.collectives.active_plan import Hashes, PlanLike
from jaxcomm.collectives.choice import AUTO, PLANS
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.log import say, say_once


def init(
    mesh: jax.sharding.Mesh | None = None,
    *,
    plan: PlanLike = None,
    rails: str | Sequence[str] | None = None,
    deadline_s: float | None = None,
    trial: bool | None = None,
) -> None:
    """Prepares this process. Optional: a process that does not call `init` is prepared by its first collective.

    In a job of several processes on CPUs, `init` also connects this process with all other processes, as the first
    collective between processes would. If one process calls `init`, all processes must call it, after
    `jax.distributed.initialize`. A job in which only some processes run collectives needs this call.

    Args:
      mesh: if given, `plan` must fit one axis of the mesh, or several axes together. If `plan` is a mapping from axes
        to plans, each plan must fit its own axes.
      plan: the plan that collectives follow from now on, in all threads; as for `use_plan`, but None keeps the active
        plan and {} removes it. With "auto", the run itself makes plans for the processes of the mesh, or without a mesh
        for all processes (see `jaxcomm.auto_plan`). This needs a job of several processes on CPUs; in other jobs "auto"
        logs one line and counts as None. A plan file also selects TCP or UDP between hosts.
      rails: the rails that connect hosts, in place of JAXCOMM_RAILS and written like it: ["eth0", "udp:eth1"],
        "eth0,fabric:verbs", or with rates in Mbit/s "eth0:4000,eth1:1000". A plan with rails decides each rail's share.
      deadline_s: seconds that a collective waits for its last rank before it fails. None keeps the current deadline;
        the first deadline is the environment's JAXCOMM_DEADLINE_S, or 60 without this variable.
      trial: whether a plan is tried first; the value must be the same in all processes. In a trial some tens of calls
        of each call site alternate between the plan's schedule and the default schedule. Later calls keep the plan's
        schedule if it is faster. Both schedules add the same numbers, in different orders. With False, calls run the
        plan only, and results are bit-stable from call to call. None keeps the current setting; the first setting is
        the environment's JAXCOMM_TRIAL, or True without this variable. Applies to steps that are traced later.

    Raises:
      PlanError: the plan cannot be read, or fits no axis of the mesh.
      JaxcommError: invalid rails, deadline, trial or plan, or the processes cannot be connected. The settings are then
        unchanged.

    Example:
      >>> jaxcomm.init(mesh, plan="plan.json", deadline_s=60.0)
      >>> [plan["ranks"] for plan in jaxcomm.stats().plans]
      [8]
    """
    named: Sequence[Any] = ()
    if rails is not None:
        from jaxcomm.distributed.rails.named_rails import named_rails

        named = named_rails("rails", rails)
    if trial not in (True, False, None):
        raise JaxcommError(f"trial is {trial!r}.\n  Cure: give True, False or None.")
    deadline = None if deadline_s is None else active_plan.positive_seconds("deadline_s", deadline_s)
    if jax_compat.spans_processes():
        from jaxcomm.distributed.connect import members

        if not jax_compat.has_devices():
            members.before_client()
    connects = jax_compat.spans_processes() and jax.default_backend() == "cpu"
    if plan == AUTO and not connects:
        say_once('plan="auto" needs several CPU processes; this job has one, or none on CPUs, and goes on without it.')
        plan = None
    hashes = (((), AUTO),) if plan == AUTO else active_plan.load(plan)
    if mesh is not None:
        _check_mesh(hashes, mesh)
    active_plan.start()
    rejoins = connects and members.join(named, *active_plan.network(hashes)) is None
    if rejoins:
        say("this process is not connected yet, and joins the job in its next live_devices.")
    elif not connects and (used := sys.modules.get("jaxcomm.distributed.connect.members")):  # an earlier job may remain
        used.leave_last_job()
    if deadline is not None:
        ffi.set_deadline(deadline)
    if trial is not None:
        active_plan.set_trial(trial)
    if plan == AUTO:
        from jaxcomm import auto_plan

        auto_plan.follow(mesh)
        if not rejoins:
            auto_plan.begin(mesh)
    elif plan is not None and (begun := sys.modules.get("jaxcomm.auto_plan")):  # imported only by plan="auto"
        begun.end()
    if plan is not None:
        active_plan.follow(hashes)
        if begun := sys.modules.get("jaxcomm.backend.plans"):  # imported if jaxcomm runs unchanged programs
            begun.follow(hashes)


def _check_mesh(hashes: Hashes, mesh: jax.sharding.Mesh) -> None:
    sizes = mesh.shape
    together = [axes for count in range(1, len(sizes) + 1) for axes in itertools.combinations(sizes, count)]
    for axes, digest in hashes:
        fitting = [axes] if axes and sizes.keys() >= {*axes} else [] if axes else together
        if digest in PLANS and not any(
            math.prod(sizes[axis] for axis in each) == PLANS[digest].ranks for each in fitting
        ):
            ranks = PLANS[digest].ranks
            there = ", ".join(f"'{axis}' {size}" for axis, size in sizes.items())
            over = f" and given for {', '.join(map(repr, axes))}" if axes else ""
            raise PlanError(
                f"plan {digest[:8]} is for {ranks} ranks{over}, but the mesh's axes have {there}.\n"
                f"  Cure: plan from a profile of that many ranks, or make a mesh with an axis of {ranks}."
            )
