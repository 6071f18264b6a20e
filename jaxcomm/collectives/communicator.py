"""Settings of all calls, or of a thread's: the active plan and the deadline.

Calls without a plan need nothing of what plans need, pydantic above all.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import jaxcomm.plan
from jaxcomm import ffi, statistics
from jaxcomm.collectives.choice import PLANS, compile_plan
from jaxcomm.environment import DEADLINE_S, TRIAL
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.jax_compat.contexts import active_plans, trying_plans
from jaxcomm.log import say_once

if TYPE_CHECKING:
    from jaxcomm.ffi.shares import SharesFrom
    from jaxcomm.plan import Plan

OnePlan: TypeAlias = "str | os.PathLike[str] | Plan | None"
PlanLike: TypeAlias = "OnePlan | Mapping[Hashable, OnePlan]"

_COMPILED_AT_ONCE: Final = 64  # ranks of plans all of whose programs are compiled when they become active: 1.5 s

# The hashes of plans by the axes that they are for; () stands for all axes that have none of their own.
Hashes: TypeAlias = tuple[tuple[tuple[Any, ...], str], ...]


class use_plan:
    """Sets the plan that collectives of this thread follow: from now on, or, in a `with` statement, inside it.

    It counts where a step is traced, and a jitted step is traced again for each plan. `jaxcomm.init(plan=…)` sets it
    for all threads that have not called this. The first calls try the plan, as `jaxcomm.init(trial=…)` says. Tasks of
    asyncio share their thread's plan, as they do JAX's settings: no `await` belongs inside the `with` statement.

    Args:
      plan: path of a plan file, or a `jaxcomm.plan.Plan`; None for the direct schedule. Or a mapping from axes of the
        mesh to these, such as {"data": plan, ("data", "model"): None}. Calls of a number of ranks that a plan is not
        for run the direct schedule, which one logged line says.

    Raises:
      PlanError: the file cannot be read, or its plan does not compute the sum.
      JaxcommError: the argument is no plan.
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
    """The contexts that a `use_plan` has entered in this thread; `is_made`: the last on construction."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.is_made = False


def plan_hash(plan: PlanLike, axes: tuple[Any, ...] = ()) -> str:
    """The name by which `choose` will find the plan of calls over these axes; "" for no plan.

    Args:
      plan: as for `use_plan`, but None for what is active.
      axes: the mesh's axes that a call is over.

    Raises:
      PlanError, JaxcommError: as `use_plan`.
    """
    hashes = dict(active_plans.value if plan is None else load(plan))
    digest: str = hashes.get(axes, hashes.get((), ""))
    return digest


def active_plan(plan: PlanLike, axes: tuple[Any, ...]) -> Plan | None:
    """The plan itself that `plan_hash` names; None for no plan."""
    return PLANS.get(plan_hash(plan, axes))


def follow(hashes: Hashes) -> None:
    """Has all threads follow these plans from now on, but those that have called `use_plan` themselves."""
    _compile_plans(hashes)
    active_plans.set_global(hashes)
    active_plans(hashes).__enter__()  # this thread may have followed another
    record(hashes)


def set_trial(tries: bool) -> None:
    """Whether calls that are traced from now on compare their plan with the default schedule first, in all threads."""
    trying_plans.set_global(tries)
    trying_plans(tries).__enter__()  # this thread may have had another


def tries(plan: str) -> bool:
    """Whether calls of this plan do, whose trials are then reported.

    Args:
      plan: the plan's hash.
    """
    if plan not in PLANS or not trying_plans.value:
        return False
    from jaxcomm.collectives import trials

    trials.watch()
    return True


def record(hashes: Hashes) -> None:
    """Notes for `jaxcomm.stats()` that these plans are followed from now on."""
    statistics.record_plans(_records(hashes))


def network(hashes: Hashes) -> tuple[Sequence[SharesFrom], str]:
    """The shares of rails and the transport between hosts, "tcp", "udp" or "", that these plans ask for."""
    plans = [PLANS[digest] for _, digest in hashes if digest in PLANS]
    shares = next((found.in_units() for each in plans if (found := each.rails)), ())
    transports = {each.transport.protocol for each in plans if each.transport}
    if len(transports) > 1:
        say_once("plans for different axes disagree on TCP or UDP between hosts; using UDP.")
    return shares, max(transports, default="")


def require_ranks(plan: str, sizes: Iterable[int], where: str) -> None:
    """Raises PlanError if a plan that was given for a call is not for groups of these sizes.

    Args:
      plan: the plan's hash.
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
    """Loads the core and sets the environment's deadline, once.

    Raises:
      JaxcommError: JAXCOMM_DEADLINE_S or JAXCOMM_TRIAL is invalid.
    """
    ffi.register()
    if (trial := os.environ.get(TRIAL)) not in (None, "", "0", "1"):
        raise JaxcommError(f"{TRIAL} is {trial!r}.\n  Cure: set it to 0 or 1, or unset it.")
    if DEADLINE_S in os.environ:
        ffi.set_deadline(positive_seconds(DEADLINE_S, os.environ[DEADLINE_S]))


def positive_seconds(name: str, value: float | str) -> float:
    """The value as a number of seconds.

    Raises:
      JaxcommError: it is not a positive, finite number; the message calls it `name`.
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
    """The hashes of the plans by axes, with the plans read and proved, and kept for `choose`.

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


def _records(hashes: Hashes) -> list[dict[str, Any]]:
    """Of `jaxcomm.stats().plans`."""
    records = []
    for axes, digest in hashes:
        record: dict[str, Any] = {"plan": digest or "none"}
        if digest in PLANS:
            from jaxcomm.plan.in_force import in_force

            record = in_force(PLANS[digest])
        records.append({"axes": [str(axis) for axis in axes], **record})
    return records


def _compile_plans(hashes: Hashes) -> None:
    """Lets executables that another process compiled find their programs here, unless that would take long."""
    if hashes:
        start()
    for _, digest in hashes:
        if digest in PLANS and PLANS[digest].ranks <= _COMPILED_AT_ONCE:
            compile_plan(digest)
