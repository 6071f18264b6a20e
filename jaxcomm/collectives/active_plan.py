"""Settings of all calls, or of one thread's calls: the active plan and the deadline.

Calls without a plan import no module that only plans need, such as pydantic.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import jaxcomm.plan
from jaxcomm import ffi, statistics
from jaxcomm.collectives.choice import PLANS, compile_plan
from jaxcomm.environment import DEADLINE_S, DUMP
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.jax_compat.contexts import active_plans, trying_plans
from jaxcomm.log import say_once
from jaxcomm.watch import server

if TYPE_CHECKING:
    from jaxcomm.ffi.shares import PlanRails
    from jaxcomm.plan import Plan

OnePlan: TypeAlias = "str | os.PathLike[str] | Plan | None"
PlanLike: TypeAlias = "OnePlan | Mapping[Any, OnePlan]"  # a mapping's keys are axes: str | tuple[str, ...]

# The programs of plans for up to 64 ranks are compiled when the plan becomes active. Compiling takes up to 1.5 s.
_COMPILED_AT_ONCE: Final = 64

# Pairs of a plan's axes and the plan's hash. The axes () stand for all axes without a plan of their own.
Hashes: TypeAlias = tuple[tuple[tuple[Any, ...], str], ...]


class use_plan:
    """Sets the plan that this thread's collectives follow: from now on, or until a `with` statement ends.

    The plan takes effect when a step is traced; a jitted step is traced again for each plan. `jaxcomm.init(plan=…)`
    sets the plan of all threads that have not called `use_plan`. The first calls try the plan, as described for
    `jaxcomm.init(trial=…)`. Tasks of asyncio share their thread's plan and JAX settings: do not `await` inside the
    `with` statement.

    Args:
      plan: path of a plan file, or a `jaxcomm.plan.Plan`; None for the direct schedule. Or a mapping from axes of the
        mesh to such values, for example {"data": plan, ("data", "model"): None}. If a call has another number of ranks
        than the plan, it runs the direct schedule and logs one line.

    Raises:
      PlanError: the file cannot be read, or its plan does not compute the sum.
      JaxcommError: the argument is not a plan.

    Example:
      >>> total = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
      >>> with jaxcomm.use_plan("plan.json"):
      ...     print(jax.jit(total)(jnp.arange(8.0)))
      [28.]
    """

    def __init__(self, plan: PlanLike) -> None:
        self._plans = load(plan)
        _compile_plans(self._plans)
        self._here = _Scopes()
        self.__enter__()
        self._here.is_made = True

    def __enter__(self) -> Self:
        if not self._here.is_made:
            self._here.scopes.append(active_plans(self._plans))
            self._here.scopes[-1].__enter__()
        self._here.is_made = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._here.scopes.pop().__exit__(kind, error, trace)


class _Scopes(threading.local):
    """The contexts that a `use_plan` has entered in this thread.

    `is_made`: the constructor has already entered a context, so the next `__enter__` does not enter another one.
    """

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.is_made = False


def plan_hash(plan: PlanLike, axes: tuple[Any, ...] = ()) -> str:
    """The hash of the plan that calls over these axes follow, which is the plan's key in PLANS; "" if there is no plan.

    Args:
      plan: as for `use_plan`, but None stands for the active plan.
      axes: the axes of the mesh over which a call runs.

    Raises:
      PlanError, JaxcommError: as `use_plan`.
    """
    hashes = dict(active_plans.value if plan is None else load(plan))
    digest: str = hashes.get(axes, hashes.get((), ""))
    return digest


def active_plan(plan: PlanLike, axes: tuple[Any, ...]) -> Plan | None:
    """The plan whose hash `plan_hash` returns, or None if there is no plan."""
    return PLANS.get(plan_hash(plan, axes))


def follow(hashes: Hashes) -> None:
    """Makes all threads that have not called `use_plan` themselves follow these plans from now on."""
    _compile_plans(hashes)
    active_plans.set_global(hashes)
    active_plans(hashes).__enter__()  # this thread may have followed another plan
    record(hashes)


def set_trial(tries: bool) -> None:
    """Sets for all threads whether calls traced from now on first try their plan against the default schedule."""
    trying_plans.set_global(tries)
    trying_plans(tries).__enter__()  # this thread may have another setting


def tries(plan: str) -> bool:
    """Returns whether calls of this plan first compare it with the default schedule. Starts to report such trials.

    Args:
      plan: the plan's hash.
    """
    if plan not in PLANS or not trying_plans.value:
        return False
    from jaxcomm.collectives import trials

    trials.watch()
    return True


def record(hashes: Hashes) -> None:
    """Records, for `jaxcomm.stats()`, that calls follow these plans from now on."""
    statistics.record_plans(_records(hashes))


def network(hashes: Hashes) -> tuple[PlanRails | None, str]:
    """The rails that these plans ask for, and their transport between hosts: "tcp", "udp", or "" if no plan has one."""
    plans = [PLANS[digest] for _, digest in hashes if digest in PLANS]
    rails = next((found.planned() for each in plans if (found := each.rails)), None)
    transports = {each.transport.protocol for each in plans if each.transport}
    if len(transports) > 1:
        say_once("plans for different axes disagree on TCP or UDP between hosts; using UDP.")
    return rails, max(transports, default="")


def require_ranks(plan: str, sizes: Iterable[int], where: str) -> None:
    """Raises PlanError if a call's `plan` does not fit groups of these sizes.

    Args:
      plan: the plan's hash.
      sizes: the number of ranks in each group.
      where: the call's name in error texts: "psum over 'data'".
    """
    for ranks in sorted({*sizes} - {1}):
        if plan in PLANS and PLANS[plan].ranks != ranks:
            raise PlanError(
                f"{where}: plan {plan[:8]} is for {PLANS[plan].ranks} ranks; this call has {ranks}.\n"
                f"  Cure: give the call a plan for {ranks} ranks, or leave `plan` out."
            )


@functools.cache
def start() -> None:
    """Loads the core, sets the deadline, starts to write dumps, and lets `jaxcomm top` query this process. Runs once.

    Raises:
      JaxcommError: JAXCOMM_DEADLINE_S or JAXCOMM_DUMP is invalid.
    """
    ffi.register()
    if DEADLINE_S in os.environ:
        ffi.set_deadline(positive_seconds(DEADLINE_S, os.environ[DEADLINE_S]))
    if folder := os.environ.get(DUMP):
        from jaxcomm import dump

        dump.start(folder)
    server.start()


def positive_seconds(name: str, value: float | str) -> float:
    """The value as a number of seconds.

    Raises:
      JaxcommError: the value is not a positive, finite number; the error text calls it `name`.
    """
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise JaxcommError(
            f"{name} is {value!r}; it must be a positive number of seconds.\n  Cure: give for example 60."
        )
    return seconds


def load(plan: PlanLike) -> Hashes:
    """Reads and proves the plans, keeps them in PLANS, and returns the hash of each plan with the plan's axes.

    Raises:
      PlanError, JaxcommError: as `use_plan`.
    """
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
        plan = jaxcomm.plan.load(plan)  # this also proves the plan
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


def _records(hashes: Hashes) -> list[dict[str, Any]]:
    """The records of these plans for `jaxcomm.stats().plans`."""
    records = []
    for axes, digest in hashes:
        record: dict[str, Any] = {"plan": digest or "none"}
        if digest in PLANS:
            from jaxcomm.plan.in_force import in_force

            record = in_force(PLANS[digest])
        records.append({"axes": [str(axis) for axis in axes], **record})
    return records


def _compile_plans(hashes: Hashes) -> None:
    """Compiles all programs of the plans for at most `_COMPILED_AT_ONCE` ranks.

    All programs are compiled, because an executable of another process may name any of them.
    """
    if hashes:
        start()
    for _, digest in hashes:
        if digest in PLANS and PLANS[digest].ranks <= _COMPILED_AT_ONCE:
            compile_plan(digest)
