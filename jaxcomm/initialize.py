"""`jaxcomm.init`: the settings before a run's first collective, and the start of its threads and connections.

It is above communicator, distributed and auto_plan, which it brings together; only the public face imports it.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax

from jaxcomm import ffi, jax_compat
from jaxcomm.collectives import communicator
from jaxcomm.collectives.choice import AUTO, PLANS
from jaxcomm.collectives.communicator import Hashes, PlanLike
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.log import say_once


def init(
    mesh: jax.sharding.Mesh | None = None,
    *,
    plan: PlanLike = None,
    rails: str | Sequence[str] | None = None,
    deadline_s: float | None = None,
    trial: bool | None = None,
) -> None:
    """Prepares this process. Optional: without it, the first collective does so with the defaults.

    In a job of several processes on CPUs it also connects this one with the others, as the first collective between
    them would; all of them must call it, after `jax.distributed.initialize`. Where only some processes run collectives,
    they need it.

    Args:
      mesh: if given, `plan` must fit one of its axes, or several together; plans by axes must fit theirs.
      plan: the plan that collectives follow from now on, in all threads; as for `use_plan`, but None leaves the active
        one and {} ends it. "auto", in a job of several processes on CPUs: plans that the run makes itself for the
        processes of the mesh, or for all, see `jaxcomm.auto_plan`; elsewhere it is None, after one line in the log. A
        plan file also says whether TCP or UDP is to connect hosts.
      rails: the network interfaces that connect hosts, as JAXCOMM_RAILS names them and in its place: ["eth0", "eth1"],
        or with their Mbit/s "eth0:4000,eth1:1000". A plan with rails decides the share of each.
      deadline_s: seconds that a collective waits for its last rank before it fails; None leaves it: at first it is the
        environment's JAXCOMM_DEADLINE_S, or 60.
      trial: whether a plan is tried first, alike in all processes: some tens of calls of each call site run by turns
        the plan's schedule and the default one, and keep the plan's if it is faster. Results of both are sums of the
        same numbers, in another order. False keeps to the plan, and results are bit-stable from call to call. None
        leaves it: at first it is the environment's JAXCOMM_TRIAL, or True. Counts for steps that are traced later.

    Raises:
      PlanError: the plan cannot be read, or fits no axis of the mesh.
      JaxcommError: invalid rails, deadline, trial or plan, or the processes cannot be connected; nothing has been
        changed.
    """
    named: Sequence[Any] = ()
    if rails is not None:
        from jaxcomm.distributed.settings import named_rails

        named = named_rails("rails", rails)
    if trial not in (True, False, None):
        raise JaxcommError(f"trial is {trial!r}.\n  Cure: give True, False or None.")
    deadline = None if deadline_s is None else communicator.positive_seconds("deadline_s", deadline_s)
    connects = jax_compat.spans_processes() and jax.default_backend() == "cpu"
    if plan == AUTO and not connects:
        say_once('plan="auto" needs several CPU processes; this job has one, or none on CPUs, and goes on without it.')
        plan = None
    hashes = (((), AUTO),) if plan == AUTO else communicator.load(plan)
    if mesh is not None:
        _check_mesh(hashes, mesh)
    communicator.start()
    if connects:
        from jaxcomm.distributed import members

        members.connected(named, *communicator.network(hashes))
    elif members_used := sys.modules.get("jaxcomm.distributed.members"):  # there was a job of several processes
        members_used.leave_last_job()
    if deadline is not None:
        ffi.set_deadline(deadline)
    if trial is not None:
        communicator.set_trial(trial)
    if plan == AUTO:
        from jaxcomm import auto_plan

        auto_plan.begin(mesh)
    elif plan is not None and (begun := sys.modules.get("jaxcomm.auto_plan")):  # used by few runs
        begun.end()
    if plan is not None:
        communicator.follow(hashes)
        if begun := sys.modules.get("jaxcomm.backend.plans"):  # where jaxcomm carries the program's own collectives
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
