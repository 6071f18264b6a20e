"""What is set for all calls, or for those of a thread: the active plan and the deadline.

Calls without a plan need nothing of what plans need, pydantic above all.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import jax

import jaxcomm.plan
from jaxcomm import ffi, jax_compat, plan_history
from jaxcomm.choice import AUTO, PLANS, compile_plan
from jaxcomm.errors import JaxcommError, PlanError

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

OnePlan: TypeAlias = "str | os.PathLike[str] | Plan | None"
PlanLike: TypeAlias = "OnePlan | Mapping[Hashable, OnePlan]"

_DEADLINE: Final = "JAXCOMM_DEADLINE_S"
_COMPILED_AT_ONCE: Final = 64  # ranks of plans all of whose programs are compiled when they become active: 1.5 s

# The hashes of plans by the axes that they are for; () stands for all axes that have none of their own.
_Hashes: TypeAlias = tuple[tuple[tuple[Any, ...], str], ...]

# The active plans. JAX compiles anew where they change.
_active = jax.make_user_context(())


def init(
    mesh: jax.sharding.Mesh | None = None,
    *,
    plan: PlanLike = None,
    rails: str | Sequence[str] | None = None,
    deadline_s: float | None = None,
) -> None:
    """Prepares this process. Optional: without it, the first collective does so with the defaults.

    In a job of several processes on CPUs it also connects this one with the others, as the first collective between
    them would; all of them must call it, after `jax.distributed.initialize`. Where only some processes run collectives,
    they need it.

    Args:
      mesh: if given, `plan` must fit one of its axes, or several together; plans by axes must fit theirs.
      plan: what collectives follow from now on, in all threads; as for `use_plan`, but None leaves what is active and
        {} ends it. "auto", in a job of several processes on CPUs: plans that the run makes itself, see
        `jaxcomm.renewal`.
      rails: the network interfaces that connect hosts, as JAXCOMM_RAILS names them and in its place: ["eth0", "eth1"],
        or with their rates "eth0:4,eth1:1". What each carries is the plan's to say, if it has rails.
      deadline_s: seconds that a collective waits for its last rank before it fails; None leaves it: at first it is the
        environment's JAXCOMM_DEADLINE_S, or 60.

    Raises:
      PlanError: the plan cannot be read, or fits no axis of the mesh.
      JaxcommError: rails that are none, a deadline that is no positive number, or a plan that is none; or the processes
        cannot be connected. Nothing has been changed then.
    """
    named: Sequence[Any] = ()
    if rails is not None:
        from jaxcomm.distributed.settings import named_rails

        named = named_rails("rails", rails)
    deadline = None if deadline_s is None else _seconds("deadline_s", deadline_s)
    is_job = jax_compat.is_job() and jax.default_backend() == "cpu"
    if plan == AUTO and not is_job:
        raise JaxcommError(
            'plan="auto" is for several processes on CPUs, which this is not one of.\n'
            "  Cure: start the script with `jaxcomm launch` and call jax.distributed.initialize() first, or plan "
            "with `jaxcomm profile` and `jaxcomm plan`."
        )
    hashes = (((), AUTO),) if plan == AUTO else _load(plan)
    if mesh is not None:
        _check_mesh(hashes, mesh)
    start()
    if is_job:
        from jaxcomm.distributed import members

        plans = [PLANS[digest] for _, digest in hashes if digest in PLANS]
        planned = next((found for each in plans if (found := each.rails)), None)
        members.connected(named, planned.in_units() if planned else ())
    if deadline is not None:
        ffi.set_deadline(deadline)
    if plan == AUTO:
        from jaxcomm import renewal

        renewal.begin()
    elif plan is not None and (begun := sys.modules.get("jaxcomm.renewal")):  # which few runs need
        begun.end()
    if plan is not None:
        _compile_plans(hashes)
        _active.set_global(hashes)
        plan_history.follow(_records(hashes))
        _active(hashes).__enter__()  # this thread may have followed another


class use_plan:
    """Sets the plan that collectives of this thread follow: from now on, or, in a `with` statement, inside it.

    It counts where a step is traced, and a jitted step is traced again for each plan. `jaxcomm.init(plan=…)` sets it
    for all threads that have not called this. Tasks of asyncio share their thread's plan, as they do JAX's settings: no
    `await` belongs inside the `with` statement.

    Args:
      plan: path of a plan file, or a `jaxcomm.plan.Plan`; None for the direct schedule. Or a mapping from axes of the
        mesh to these, such as {"data": plan, ("data", "model"): None}. Calls of a number of ranks that a plan is not
        for run the direct schedule, which one logged line says.

    Raises:
      PlanError: the file cannot be read, or its plan does not compute the sum.
      JaxcommError: what was given is no plan.
    """

    def __init__(self, plan: PlanLike) -> None:
        self._plans = _load(plan)
        _compile_plans(self._plans)
        self._here = _Scopes()
        self.__enter__()
        self._here.is_made = True

    def __enter__(self) -> Self:
        if not self._here.is_made:
            self._here.scopes.append(_active(self._plans))
            self._here.scopes[-1].__enter__()
        self._here.is_made = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._here.scopes.pop().__exit__(kind, error, trace)


class _Scopes(threading.local):
    """What a `use_plan` has entered in this thread, and whether the last was when it was made, for the next `with`."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.is_made = False


def plan_hash(plan: PlanLike, axes: tuple[Any, ...] = ()) -> str:
    """The name by which `choose` will find the plan of calls over these axes; "" if there is none.

    Args:
      plan: as for `use_plan`, but None for what is active.
      axes: the mesh's axes that a call is over.

    Raises:
      PlanError, JaxcommError: as `use_plan`.
    """
    hashes = dict(_active.value if plan is None else _load(plan))
    digest: str = hashes.get(axes, hashes.get((), ""))
    return digest


def active_plan(plan: PlanLike, axes: tuple[Any, ...]) -> Plan | None:
    """The plan itself that `plan_hash` names; None if there is none."""
    return PLANS.get(plan_hash(plan, axes))


def require_ranks(plan: str, sizes: Iterable[int], where: str) -> None:
    """Raises PlanError if a plan that was given for a call is not for groups of these sizes.

    Args:
      plan: what `plan_hash` returned.
      sizes: ranks in each group.
      where: the call, for messages: "psum over 'data'".
    """
    for ranks in sorted({*sizes} - {1}):
        if plan in PLANS and PLANS[plan].ranks != ranks:
            raise PlanError(
                f"{where}: plan {plan[:8]} is for {PLANS[plan].ranks} ranks; this call has {ranks}.\n"
                f"  Cure: give the call a plan for {ranks} ranks, or leave `plan` out."
            )


@functools.cache
def start() -> None:
    """Loads the core and sets the environment's deadline, once."""
    ffi.register()
    if _DEADLINE in os.environ:
        ffi.set_deadline(_seconds(_DEADLINE, os.environ[_DEADLINE]))


def _seconds(name: str, value: float | str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise JaxcommError(
            f"{name} is {value!r}; it must be a positive number of seconds.\n  Cure: give for example 60."
        )
    return seconds


def _load(plan: PlanLike) -> _Hashes:
    if plan is None:
        return ()
    if not isinstance(plan, Mapping):
        return (((), _hash(plan, "plan")),)
    hashes = {
        axes if isinstance(axes, tuple) else (axes,): "" if each is None else _hash(each, f"plan[{axes!r}]")
        for axes, each in plan.items()
    }
    return tuple(sorted(hashes.items(), key=str))


def _hash(plan: Any, where: str) -> str:
    if isinstance(plan, str | os.PathLike):
        plan = jaxcomm.plan.load(plan)  # which proves it
    elif not isinstance(plan, jaxcomm.plan.Plan):
        raise JaxcommError(
            f"{where} is {plan!r:.60}, of type {type(plan).__name__}.\n"
            "  Cure: give the path of a plan file, a jaxcomm.plan.Plan or None; or a dict from axes to these."
        )
    elif plan.hash not in PLANS:
        from jaxcomm.plan.proof import verify_embedded

        verify_embedded(plan)
    PLANS[plan.hash] = plan
    digest: str = plan.hash
    return digest


def _records(hashes: _Hashes) -> list[dict[str, Any]]:
    """Of `jaxcomm.stats().plans`."""
    records = []
    for axes, digest in hashes:
        record: dict[str, Any] = {"plan": digest or "none"}
        if digest in PLANS:
            from jaxcomm.plan.in_force import in_force

            record = in_force(PLANS[digest])
        records.append({"axes": [str(axis) for axis in axes], **record})
    return records


def _compile_plans(hashes: _Hashes) -> None:
    """Lets executables that another process compiled find their programs here, unless that would take long."""
    if hashes:
        start()
    for _, digest in hashes:
        if digest in PLANS and PLANS[digest].ranks <= _COMPILED_AT_ONCE:
            compile_plan(digest)


def _check_mesh(hashes: _Hashes, mesh: jax.sharding.Mesh) -> None:
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
